"""TTT as a setting of the neural memory: what `NeuralMemory` is told to be TTT-Linear or TTT-MLP."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from titans.layers.neural_memory import NeuralMemory
from titans.layers.registry import register_mixer

"""TTT (Sun et al., 2024, *Learning to (Learn at Test Time)*, arXiv 2407.04620, sections 2.1 to 2.7), per head:

    f(x; W) = x + LN(x W)                             TTT-Linear
    f(x; W) = x + LN(GELU(x W1) W2)                   TTT-MLP, four times as wide inside
    l_t(W) = ||f(k_t; W) - v_t||^2
    W_t = W_{t-1} - theta_t grad l_t(W')              W': as of the start of the mini-batch of 16 tokens
    y_t = f(q_t; W_t)                                 theta_t = theta_max sigmoid(x_t w + b)

It is the associative memory without momentum (eta = 0: surprise is the present gradient alone) and without forgetting
(alpha = 0). As published, too: gate and norm of what is read, short convolutions, a learned W_0. What differs from the
published layer, because it is the same `NeuralMemory` as in the Titans and comparisons are to show the rule alone:

- queries, keys and values each have a projection of their own, SiLU and unit length; theirs share one for q and k;
- theta_max is 0.5 / b and each gradient is limited to the curvature it meets, so that repeated data cannot make the
  memory diverge; theirs is 1 / d (TTT-Linear) or 0.1 / d, times a learned factor for each place in the mini-batch,
  without a limit (`limit_steps=False` and `theta_max` are that);
- the inner network has no biases, and its LN a scale only;
- queries and keys are not rotated, and the target is v, where they write v - k against LN alone: the same loss.
"""
LINEAR = MappingProxyType[str, Any](
    {
        "depth": 1,
        "rule": "chunk",
        "residual": True,
        "norm": True,
        "momentum": False,
        "forgetting": False,
        "channelwise_forgetting": False,
        "gates": "token",
        "gate_floor": 0.0,
    }
)
MLP = MappingProxyType[str, Any]({**LINEAR, "depth": 2, "expansion": 4, "activation": "gelu"})

register_mixer("ttt_linear", NeuralMemory, persistent_tokens=0, **LINEAR)
register_mixer("ttt_mlp", NeuralMemory, persistent_tokens=0, **MLP)
