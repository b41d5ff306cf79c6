"""The linear recurrences: a matrix memory with decay, written by addition or by the delta rule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from titans.ops.gated_delta_rule import fla
from titans.ops.gated_delta_rule.chunk import chunk_gated_delta_rule
from titans.ops.gated_delta_rule.naive import naive_gated_delta_rule
from titans.ops.gated_delta_rule.state import GatedDeltaRuleState
from titans.ops.tracing import disable_autocast

__all__ = ["GatedDeltaRuleState", "gated_delta_rule"]

BACKENDS = {"chunk": chunk_gated_delta_rule, "naive": naive_gated_delta_rule}


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None = None,
    state: GatedDeltaRuleState | None = None,
    *,
    chunk_size: int = 64,
    mask: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, GatedDeltaRuleState]:
    """Write tokens into a matrix memory and read each at the memory as of that token.

    Per token t and head, with `a_t = exp(log_decay_t)`, one number or one per key channel (row of S):

        S'_t = a_t S_{t-1}                                 decay
        S_t  = S'_t + k_t^T v_t                            write, without beta
        S_t  = S'_t + beta_t k_t^T (v_t - k_t S'_t)        write, with beta: the delta rule
        y_t  = q_t S_t                                     read

    Without beta: linear attention (no decay), RetNet (constant decay), Mamba2 (one decay a head), GLA (one a channel).
    With beta: DeltaNet (no decay), Gated DeltaNet (one decay a head), Kimi Delta Attention (one a channel).
    `titans.ops.associative_memory` with rule "token" and a matrix reads the error before the decay instead.

    Differentiable in q, k, v, log_decay, beta and the state. The memory is kept in the state's precision and at
    least in float32, also under autocast. The chunk size is a matter of speed and changes no result.

    Args:
        q: queries `[B, T, H, d_k]`; nothing scales them here.
        k: keys `[B, T, H, d_k]`.
        v: values `[B, T, H, d_v]`.
        log_decay: natural logarithm of the decay, <= 0: `[B, T, H]`, or per key channel `[B, T, H, d_k]`. -inf is a
            decay of exactly 0. None: no decay.
        beta: step sizes `[B, T, H]` of the delta rule; None writes by addition.
        state: the memory before the first token, from an earlier call, of B rows or one; never modified. None: empty.
        chunk_size: tokens that are treated together. Default 64.
        mask: `[B, T]`, bool; False marks padding, which changes nothing and reads 0. Default: no padding.
        backend: "chunk", or "naive", the token-by-token oracle. Default: the kernel of
            flash-linear-attention where there is one for the call (docs/guide/models.md), "chunk" otherwise.

    Returns:
        `(y, state)` with y `[B, T, H, d_v]`.

    Raises:
        ValueError: shapes or options do not fit together; the message says which.
    """
    if backend is not None and backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown: choose one of {', '.join(BACKENDS)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1")
    _check_shapes(q, k, v, log_decay, beta, state, mask)
    matrix = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]) if state is None else state.matrix
    dtype = torch.promote_types(q.dtype if state is None else matrix.dtype, torch.float32)
    matrix = matrix.to(dtype).expand(q.shape[0], -1, -1, -1)
    if backend is None and fla.applies(q, log_decay, beta):
        q, k, v, log_decay, beta = (_without_padding(x, mask) for x in (q, k, v, log_decay, beta))
        y, matrix = fla.fla_gated_delta_rule(q, k, v, log_decay, beta, matrix)
        return y, GatedDeltaRuleState(matrix)
    log_decay = q.new_zeros(q.shape[:3]) if log_decay is None else log_decay
    gates = [x if x is None or x.dim() == 4 else x.unsqueeze(-1) for x in (log_decay, beta)]
    inputs: list[Any] = [None if x is None else _prepare(x, mask, dtype) for x in (q, k, v, *gates)]
    with disable_autocast(q.device):
        y, matrix = BACKENDS[backend or "chunk"](*inputs, matrix, chunk_size)  # type: ignore[call-arg]
    return y.transpose(1, 2).to(q.dtype), GatedDeltaRuleState(matrix)


def _prepare(x: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Bring `[B, T, H, d]` to `[B, H, T, d]`."""
    without: Tensor = _without_padding(x, mask)
    return without.to(dtype).transpose(1, 2)


def _without_padding(x: Tensor | None, mask: Tensor | None) -> Any:
    """Make `[B, T, H]` or `[B, T, H, d]` 0 at padding: no key is written and nothing decays."""
    if x is None or mask is None:
        return x
    return x.masked_fill(~mask.view(*mask.shape, *[1] * (x.dim() - 2)), 0.0)


def _check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    state: GatedDeltaRuleState | None,
    mask: Tensor | None,
) -> None:
    if q.dim() != 4:
        raise ValueError(f"q has shape {tuple(q.shape)}: expected [B, T, H, d_k]")
    batch, tokens, heads, width = q.shape
    if tokens == 0:
        raise ValueError("q holds no tokens: pass at least one")
    expected = {"k": (k, (batch, tokens, heads, width)), "v": (v, (batch, tokens, heads, *v.shape[3:4]))}
    if log_decay is not None:
        channels = (width,) if log_decay.dim() == 4 else ()
        expected["log_decay"] = (log_decay, (batch, tokens, heads, *channels))
    if beta is not None:
        expected["beta"] = (beta, (batch, tokens, heads))
    if mask is not None:
        expected["mask"] = (mask, (batch, tokens))
    for name, (x, shape) in expected.items():
        if tuple(x.shape) != shape or (name == "v" and x.dim() != 4):
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {shape} from the shape of q")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {mask.dtype}: expected torch.bool, True for tokens")
    if state is not None:
        if tuple(state.matrix.shape[1:]) != (heads, width, v.shape[3]):
            raise ValueError(
                f"the state's matrix has shape {tuple(state.matrix.shape)}: "
                f"expected {(batch, heads, width, v.shape[3])} from q and v"
            )
        if state.matrix.shape[0] not in (1, batch):
            raise ValueError(
                f"the state holds {state.matrix.shape[0]} rows and q {batch}: select or repeat the state's rows first"
            )
