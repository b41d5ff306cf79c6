"""The associative memory: an MLP trained by gradient descent with momentum and decay while it is read."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from titans.ops.associative_memory.chunk import chunk_associative_memory
from titans.ops.associative_memory.naive import naive_associative_memory
from titans.ops.associative_memory.network import ACTIVATIONS, Network, Options
from titans.ops.associative_memory.state import AssociativeMemoryState, initial_state
from titans.ops.tracing import disable_autocast, is_concrete

__all__ = ["ACTIVATIONS", "RULES", "AssociativeMemoryState", "Network", "associative_memory", "initial_state"]

BACKENDS = {"chunk": chunk_associative_memory, "naive": naive_associative_memory}
RULES = ("chunk", "token")


@overload
def associative_memory(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, alpha: Tensor, eta: Tensor, state: AssociativeMemoryState,
    *, return_surprise: Literal[False] = False, **options: Any,
) -> tuple[Tensor, AssociativeMemoryState]: ...  # fmt: skip
@overload
def associative_memory(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, alpha: Tensor, eta: Tensor, state: AssociativeMemoryState,
    *, return_surprise: Literal[True], **options: Any,
) -> tuple[Tensor, AssociativeMemoryState, Tensor]: ...  # fmt: skip
@overload
def associative_memory(
    q: Tensor, k: Tensor, v: Tensor, theta: Tensor, alpha: Tensor, eta: Tensor, state: AssociativeMemoryState,
    *, return_surprise: bool, **options: Any,
) -> tuple[Tensor, AssociativeMemoryState] | tuple[Tensor, AssociativeMemoryState, Tensor]: ...  # fmt: skip
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
    mask: Tensor | None = None,
    return_surprise: bool = False,
    backend: str = "chunk",
) -> tuple[Tensor, AssociativeMemoryState] | tuple[Tensor, AssociativeMemoryState, Tensor]:
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
        q: queries `[B, H, N, d_in]`.
        k: keys `[B, H, N, d_in]`.
        v: values `[B, H, N, d_out]`.
        theta: step sizes `[B, H, N]`, >= 0.
        alpha: forget gates in [0, 1]: `[B, H, N]`, or channel-wise `[B, H, N, c]` where c divides each layer's
            width (output j of a layer of width m c follows gate j // m).
        eta: momentum `[B, H, N]`, in [0, 1].
        state: the memory before the first token, from `initial_state` or an earlier call; never modified.
        chunk_size: tokens whose gradients share one anchor (rule "chunk"), or are solved for together (rule
            "token", where it changes speed only).
        rule: "chunk", the gradient at the memory of the chunk's start; or "token", at the memory of the previous
            token, for one layer without norm.
        activation: "gelu", "silu" or "relu", between the layers.
        residual: add the query to the output (`d_in = d_out`).
        norm_weight: scale of a layer norm on the output, `[d_out]` or `[H, d_out]`; None for no norm.
        limit_steps: shorten each gradient so that no step is longer than in a matrix memory with a unit key, however
            curved the network is (`Network.step_limit`). For rule "chunk".
        mask: `[B, N]`, bool; False marks padding, which changes nothing and reads 0. Default: no padding.
        return_surprise: also return each token's gradient norm.
        backend: "chunk", or "naive", the token-by-token oracle.

    Returns:
        `(y, state)` with y `[B, H, N, d_out]`; with `return_surprise`, `(y, state, norms)` with norms `[B, H, N]`.

    Raises:
        ValueError: shapes or options do not fit together; the message says which.
    """
    _check_options(chunk_size, rule, activation, backend, norm_weight, limit_steps, state)
    _check_shapes(q, k, v, theta, alpha, eta, mask, state, residual)
    batch, heads = q.shape[:2]
    if state.weights[0].shape[0] != batch:
        state = state.expand(batch)
    dtype = torch.promote_types(state.weights[0].dtype, torch.float32)
    state = state.to(dtype)
    if norm_weight is not None:
        if tuple(norm_weight.shape) not in (v.shape[-1:], (heads, v.shape[-1])):
            raise ValueError(
                f"norm_weight has shape {tuple(norm_weight.shape)}: expected [d_out] or [H, d_out], "
                f"here ({v.shape[-1]},) or {(heads, v.shape[-1])}"
            )
        norm_weight = norm_weight.to(dtype).expand(heads, v.shape[-1]).unsqueeze(1)  # [H, 1, d]
    inputs = [x.to(dtype) for x in (q, k, v, theta, alpha, eta)]
    options = Options(Network(activation, residual, norm_weight), rule, chunk_size, return_surprise, limit_steps)
    with disable_autocast(q.device):
        y, norms, state = BACKENDS[backend](options, *inputs, mask, state)  # type: ignore[call-arg, arg-type]
    y = y.to(q.dtype)
    return (y, state) if norms is None else (y, state, norms)


def _check_options(
    chunk_size: int,
    rule: str,
    activation: str,
    backend: str,
    norm_weight: Tensor | None,
    limit_steps: bool,
    state: AssociativeMemoryState,
) -> None:
    for name, value, allowed in (
        ("rule", rule, RULES),
        ("activation", activation, ACTIVATIONS),
        ("backend", backend, BACKENDS),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is unknown: choose one of {', '.join(allowed)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1")
    if rule == "token" and backend != "naive" and (len(state.weights) > 1 or norm_weight is not None):
        raise ValueError(
            "rule='token' solves exactly for a matrix memory only: use one layer and norm_weight=None, or rule='chunk'"
        )
    if rule == "token" and limit_steps:
        raise ValueError("limit_steps=True needs rule='chunk': a matrix memory's steps have nothing to limit but theta")
    offset = state.offset
    if isinstance(offset, Tensor):  # looked at only where that waits for nothing
        offset = int(offset.max()) if offset.device.type == "cpu" and is_concrete(offset) else 0
    if not 0 <= offset < chunk_size:
        raise ValueError(
            f"the state stands {offset} tokens into a chunk, beyond chunk_size={chunk_size}: "
            "continue a stream with the chunk_size it was started with"
        )


def _check_shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    theta: Tensor,
    alpha: Tensor,
    eta: Tensor,
    mask: Tensor | None,
    state: AssociativeMemoryState,
    residual: bool,
) -> None:
    if q.dim() != 4:
        raise ValueError(f"q has shape {tuple(q.shape)}: expected [B, H, N, d]")
    batch, heads, tokens, width = q.shape
    if tokens == 0:
        raise ValueError("q holds no tokens: pass at least one")
    first, last = state.weights[0].shape, state.weights[-1].shape
    expected = {
        "q": (q, (batch, first[1], tokens, first[2])),
        "k": (k, (batch, heads, tokens, width)),
        "v": (v, (batch, heads, tokens, last[3])),
        "theta": (theta, (batch, heads, tokens)),
        "alpha": (alpha, (batch, heads, tokens, *alpha.shape[3:4])),
        "eta": (eta, (batch, heads, tokens)),
    }
    if mask is not None:
        expected["mask"] = (mask, (batch, tokens))
    for name, (x, shape) in expected.items():
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {shape} from q and the state's weights")
    if first[0] not in (1, batch):
        raise ValueError(f"the state holds {first[0]} rows and q {batch}: select or repeat the state's rows first")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {mask.dtype}: expected torch.bool, True for tokens")
    if residual and first[2] != last[3]:
        raise ValueError(f"residual=True needs equal input and output widths, got {first[2]} and {last[3]}")
    if alpha.dim() == 4 and any(w.shape[-1] % alpha.shape[-1] for w in state.weights):
        raise ValueError(f"channel-wise alpha has {alpha.shape[-1]} channels, which must divide every layer's width")
