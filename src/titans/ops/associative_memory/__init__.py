"""The associative memory: an MLP trained by gradient descent with momentum and decay while it is read."""

from __future__ import annotations

from typing import Any, Literal, overload

from torch import Tensor

from titans.ops.associative_memory.arguments import RULES, memory_features, prepare, read_memory
from titans.ops.associative_memory.chunk import chunk_associative_memory
from titans.ops.associative_memory.gated import Decision, gated_associative_memory, skip_tokens
from titans.ops.associative_memory.naive import naive_associative_memory
from titans.ops.associative_memory.network import ACTIVATIONS
from titans.ops.associative_memory.state import AssociativeMemoryState, initial_state
from titans.ops.tracing import disable_autocast

__all__ = [
    "ACTIVATIONS",
    "RULES",
    "AssociativeMemoryState",
    "Decision",
    "associative_memory",
    "gated_associative_memory",
    "initial_state",
    "memory_features",
    "read_memory",
    "skip_tokens",
]


@overload
def associative_memory(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, alpha: Tensor, eta: Tensor, state: AssociativeMemoryState,
    *, return_surprise: Literal[False] = False, **options: Any,
) -> tuple[Tensor, AssociativeMemoryState]: ...  # fmt: skip
@overload
def associative_memory(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, alpha: Tensor, eta: Tensor, state: AssociativeMemoryState,
    *, return_surprise: bool, **options: Any,
) -> tuple[Any, ...]: ...  # fmt: skip
def associative_memory(  # type: ignore[misc]  # the overloads do not repeat the options
    q: Tensor,
    k: Tensor,
    v: Tensor,
    theta: Tensor,
    alpha: Tensor,
    eta: Tensor,
    state: AssociativeMemoryState,
    *,
    chunk_size: int = 64,
    rule: str = "chunk",
    activation: str = "gelu",
    residual: bool = True,
    norm_weight: Tensor | None = None,
    limit_steps: bool = False,
    feature_norm: bool = False,
    hidden_lr: float = 1.0,
    mask: Tensor | None = None,
    return_surprise: bool = False,
    backend: str | None = None,
) -> tuple[Any, ...]:
    """Write tokens into the memory and read each at the memory as of that token (docs/semantics.md, sections 1 and 2).

    Per token t and head, with `l_t(W) = ||M_W(k_t) - v_t||^2` and the gradient taken at the anchor:

        S_t = eta_t S_{t-1} - theta_t grad l_t        surprise
        W_t = (1 - alpha_t) W_{t-1} + S_t             memory
        y_t = M_{W_t}(q_t)                            read

    A call may start and stop anywhere inside a chunk. Differentiable, any number of times, in q, k, v, the gates,
    `norm_weight` and the state. The inner state and gradient keep the state's precision (at least float32), also
    under autocast.

    Values are not checked, so that nothing waits for an accelerator: NaN spoils the state (the layers refuse it).

    Args:
        q: queries `[B, T, H, d_in]`.
        k: keys `[B, T, H, d_in]`.
        v: values `[B, T, H, d_out]`.
        theta: step sizes `[B, T, H]`, >= 0.
        alpha: forget gates in [0, 1]: `[B, T, H]`, or channel-wise `[B, T, H, c]` where c divides each layer's
            width (output j of a layer of width m c follows gate j // m).
        eta: momentum `[B, T, H]`, in [0, 1].
        state: the memory before the first token, of B rows or one, from `initial_state` or an earlier call; never
            modified.
        chunk_size: tokens whose gradients share one anchor (rule "chunk"), or are solved for together (rule
            "token", where it changes speed only). Default 64.
        rule: where gradients are taken: "chunk", at the memory of the chunk's start; or "token", the last layer's at
            the memory of the previous token, those of the layers below still at the chunk's start, for a memory
            without norm. Default "chunk".
        activation: "gelu", "silu" or "relu", between the layers. Default "gelu".
        residual: add the query to the output (`d_in = d_out`). Default True.
        norm_weight: scale of a layer norm on the output, `[d_out]` or `[H, d_out]`. Default None: no norm.
        limit_steps: shorten each gradient so that no step is longer than in a matrix memory with a unit key, however
            curved the network is (`Network.step_limit`). For rule "chunk". Default False.
        feature_norm: centre the inputs of all layers but the first and bring them to length 1. Default False.
        hidden_lr: under rule "token" the step size of the layers below the last, in units of theta. Default 1.
        mask: `[B, T]`, bool; False marks padding, which changes nothing and reads 0. Default: no padding.
        return_surprise: also return each token's gradient norm. Default False.
        backend: "naive", the token-by-token oracle; "chunk", matrix products, differentiated by autograd;
            "manual_backward" and "native", the same with the derivative written out, in PyTorch and in compiled code on
            the CPU, for the chunks they serve (docs/guide/memory.md). Default: the fastest for the call.

    Returns:
        `(y, state)` with y `[B, T, H, d_out]`; with `return_surprise`, `(y, state, norms)` with norms `[B, T, H]`.

    Raises:
        ValueError: shapes or options do not fit together; the message says which.
    """
    options, inputs, state = prepare(
        (q, k, v, theta, alpha, eta), state, mask, chunk_size=chunk_size, rule=rule, activation=activation,
        residual=residual, norm_weight=norm_weight, limit_steps=limit_steps, surprise=return_surprise,
        feature_norm=feature_norm, hidden_lr=hidden_lr, backend=backend,
    )  # fmt: skip
    run = naive_associative_memory if backend == "naive" else chunk_associative_memory
    with disable_autocast(q.device):
        y, norms, state = run(options, inputs, mask, state)
    y = y.transpose(1, 2).to(v.dtype)
    return (y, state) if norms is None else (y, state, norms.transpose(1, 2))
