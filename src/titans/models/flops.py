"""How much a model computes for a token, counted from its configuration."""

from __future__ import annotations

import torch
from torch import nn

from titans.layers.attention import Attention, SlidingWindowAttention
from titans.layers.convolution import CausalConvolution
from titans.layers.delta_net import DeltaNet
from titans.layers.full_attention import FullAttention
from titans.layers.gated_delta_net import GatedDeltaNet
from titans.layers.linear_recurrence import LinearRecurrence
from titans.layers.mamba import Mamba
from titans.layers.mamba2 import Mamba2
from titans.layers.memory_as_context import MemoryAsContext
from titans.layers.neural_memory import NeuralMemory
from titans.layers.projection import ConvolvedProjection
from titans.models.configuration import TitansConfig


def flops_per_token(config: TitansConfig, context: int) -> int:
    """Count the floating-point operations of reading one token, the mean over a stream of `context` tokens.

    A multiplication and an addition are two. Counted are

    - 2 for each weight that takes part in a matrix product, the output head included, the embedding's look-up not;
      for each weight of a short convolution too;
    - attention: 4 D for each key in view, persistent and retrieved tokens included, on average over the stream;
    - the neural memory of P weights: 12 P, namely 2 P each for the keys on their way through the network and their
      errors on the way back, the two updates (of surprise and weights) and the two reads (likewise); a MAC's reading
      of the context: 2 P, and its keys and values of what was retrieved;
    - a linear recurrence: 4 for each number of its matrix, to write and to read it, and 2 more for the delta rule;
      Mamba: 6 for each number of its state, with its decay.

    That is what the recurrences of the papers take. Not counted are norms, gates and other things that work on single
    numbers, and what computing a chunk at once takes beyond the recurrence. Training takes about three times as much.

    Args:
        config: the configuration.
        context: tokens of the stream; with full attention more of them cost more each.

    Returns:
        The operations, forward.
    """
    from titans.models.modeling import TitansForCausalLM

    with torch.device("meta"):
        model = TitansForCausalLM(config)
    head = 2 * model.lm_head.weight.numel()
    read, share = context, 1.0
    if model.model.recurrence is not None:  # the blocks read the memory tokens, too, and no further than a segment
        read = config.segment_length + 2 * config.num_memory_tokens
        share = read / config.segment_length
    blocks: float = sum(_weights(m) + _own(m, read) for m in model.model.layers.modules())
    return round(share * blocks) + int(head)


def _weights(module: nn.Module) -> float:
    """2 for each weight that this module, apart from those inside it, multiplies a token by."""
    if isinstance(module, nn.Linear):
        return 2 * module.weight.numel()
    if isinstance(module, CausalConvolution):
        return 2 * module.weight.numel()
    if isinstance(module, ConvolvedProjection):
        return 0 if module.conv_weight is None else 2 * module.conv_weight.numel()
    if isinstance(module, Mamba):
        return 2 * module.dt_weight.numel()
    return 0


def _own(module: nn.Module, context: int) -> float:
    """What this module, apart from those inside it, computes of a token with others or with its memory."""
    if isinstance(module, FullAttention):
        return 4 * module.hidden_size * (context + 1) / 2
    if isinstance(module, SlidingWindowAttention):
        return 4 * module.hidden_size * (_mean(context, module.window) + _persistent(module.attention))
    if isinstance(module, NeuralMemory):
        return 12 * _memory(module)
    if isinstance(module, MemoryAsContext):
        in_view, asked = (module.segment_length + 1) / 2, 1.0
        retrieved = in_view
        if module.retrieval is not None:
            asked, retrieved = module.retrieved / module.segment_length, module.retrieved
        keys_and_values = module.attention.k_proj.weight.numel() + module.attention.v_proj.weight.numel()
        attended = 4 * module.hidden_size * (in_view + retrieved + _persistent(module.attention))
        return attended + asked * (2 * _memory(module.memory) + 2 * keys_and_values)
    if isinstance(module, LinearRecurrence):
        matrix = module.widths[1] * module.widths[2] // module.num_heads
        return (6 if isinstance(module, DeltaNet | GatedDeltaNet) else 4) * matrix
    if isinstance(module, Mamba2):
        return 4 * module.widths[0] * module.widths[1]
    if isinstance(module, Mamba):
        return 6 * module.A_log.numel()
    return 0


def _mean(context: int, window: int) -> float:
    """Mean number of keys in view of a stream's tokens."""
    inside = min(context, window)
    return (inside * (inside + 1) / 2 + (context - inside) * window) / context


def _persistent(attention: Attention) -> int:
    return 0 if attention.persistent is None else len(attention.persistent)


def _memory(memory: NeuralMemory) -> int:
    return sum(w.numel() for w in memory.initial_weights)
