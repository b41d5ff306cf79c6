"""The selective scan: a diagonal state space model whose time steps, inputs and outputs depend on the token."""

from __future__ import annotations

import torch
from torch import Tensor

from titans.ops.selective_scan.chunk import chunk_selective_scan
from titans.ops.selective_scan.naive import naive_selective_scan
from titans.ops.selective_scan.state import SelectiveScanState
from titans.ops.tracing import disable_autocast

__all__ = ["SelectiveScanState", "selective_scan"]

BACKENDS = {"chunk": chunk_selective_scan, "naive": naive_selective_scan}


def selective_scan(
    u: Tensor,
    step: Tensor,
    rate: Tensor,
    b: Tensor,
    c: Tensor,
    state: SelectiveScanState | None = None,
    *,
    chunk_size: int = 16,
    mask: Tensor | None = None,
    backend: str = "chunk",
) -> tuple[Tensor, SelectiveScanState]:
    """Run the state space model of Mamba (Gu & Dao, 2023, arXiv 2312.00752, algorithm 2), without its skip connection.

    Per token t and channel, with S numbers of state:

        h_t = exp(-dt_t rate) h_{t-1} + dt_t u_t b_t
        y_t = c_t . h_t

    Each pair of channel and number has a decay of its own, which no product of matrices can hold: where all numbers
    of a head share one (Mamba2), `titans.ops.gated_delta_rule` is faster.

    Differentiable in all tensors and the state. The state is kept in its precision and at least in float32, also under
    autocast. The chunk size is a matter of speed and changes no result.

    Args:
        u: inputs `[B, T, D]`.
        step: time steps dt, >= 0, `[B, T, D]`.
        rate: of decay, >= 0, `[D, S]`.
        b: how inputs enter the state, `[B, T, S]`.
        c: how the state is read, `[B, T, S]`.
        state: before the first token, from an earlier call, of B rows or one; never modified. None: zeros.
        chunk_size: tokens that are stepped through one after the other, in all chunks at once. Default 16.
        mask: `[B, T]`, bool; False marks padding, which changes nothing and reads 0. Default: no padding.
        backend: "chunk", or "naive", the token-by-token oracle.

    Returns:
        `(y, state)` with y `[B, T, D]`.

    Raises:
        ValueError: shapes or options do not fit together; the message says which.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown: choose one of {', '.join(BACKENDS)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1")
    _check_shapes(u, step, rate, b, c, state, mask)
    vector = u.new_zeros(u.shape[0], *rate.shape) if state is None else state.vector
    dtype = torch.promote_types(u.dtype if state is None else vector.dtype, torch.float32)
    vector = vector.to(dtype).expand(u.shape[0], -1, -1)
    if mask is not None:  # no time passes, nothing is written, and what is read is 0
        u, step, b, c = (x.masked_fill(~mask.unsqueeze(-1), 0.0) for x in (u, step, b, c))
    inputs = [x.to(dtype) for x in (u, step, rate, b, c)]
    with disable_autocast(u.device):
        y, vector = BACKENDS[backend](*inputs, vector, chunk_size)  # type: ignore[call-arg, arg-type]
    return y.to(u.dtype), SelectiveScanState(vector)


def _check_shapes(
    u: Tensor,
    step: Tensor,
    rate: Tensor,
    b: Tensor,
    c: Tensor,
    state: SelectiveScanState | None,
    mask: Tensor | None,
) -> None:
    if u.dim() != 3:
        raise ValueError(f"u has shape {tuple(u.shape)}: expected [B, T, D]")
    batch, tokens, channels = u.shape
    if tokens == 0:
        raise ValueError("u holds no tokens: pass at least one")
    if rate.dim() != 2 or rate.shape[0] != channels:
        raise ValueError(f"rate has shape {tuple(rate.shape)}: expected [{channels}, S]")
    width = rate.shape[1]
    expected: dict[str, tuple[Tensor, tuple[int, ...]]] = {
        "step": (step, (batch, tokens, channels)),
        "b": (b, (batch, tokens, width)),
        "c": (c, (batch, tokens, width)),
    }
    if mask is not None:
        expected["mask"] = (mask, (batch, tokens))
    for name, (x, shape) in expected.items():
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {shape} from the shapes of u and rate")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {mask.dtype}: expected torch.bool, True for tokens")
    if state is not None and (state.vector.shape[1:] != rate.shape or state.vector.shape[0] not in (1, batch)):
        raise ValueError(f"the state has shape {tuple(state.vector.shape)}: expected {(batch, channels, width)}")
