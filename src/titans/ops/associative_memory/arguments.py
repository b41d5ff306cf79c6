"""The arguments of a call: checked, in the state's precision and with heads before tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from titans.ops.associative_memory.network import ACTIVATIONS, Network, Options
from titans.ops.associative_memory.state import AssociativeMemoryState
from titans.ops.tracing import disable_autocast, is_concrete

BACKENDS = ("native", "manual_backward", "chunk", "naive")
RULES = ("chunk", "token")


class Inputs(NamedTuple):
    """What is written and read, heads before tokens as the matrix products want it."""

    q: Tensor  # [B, H, T, d_in]
    k: Tensor  # [B, H, T, d_in]
    v: Tensor  # [B, H, T, d_out]
    theta: Tensor  # [B, H, T]
    alpha: Tensor  # [B, H, T] or [B, H, T, c]
    eta: Tensor  # [B, H, T]


def prepare(
    inputs: tuple[Tensor, ...],
    state: AssociativeMemoryState,
    mask: Tensor | None,
    *,
    chunk_size: int,
    rule: str,
    activation: str,
    residual: bool,
    norm_weight: Tensor | None,
    limit_steps: bool,
    surprise: bool,
    feature_norm: bool = False,
    hidden_lr: float = 1.0,
    backend: str | None = None,
) -> tuple[Options, Inputs, AssociativeMemoryState]:
    """Check the arguments of `associative_memory` and bring them to the form that its backends take.

    Returns:
        The options, the inputs, and the state of B rows.

    Raises:
        ValueError: they do not fit together.
    """
    q, _, v, *_ = inputs
    for name, value, allowed in (
        ("rule", rule, RULES),
        ("activation", activation, ACTIVATIONS),
        ("backend", backend, (None, *BACKENDS)),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is unknown: choose one of {', '.join(x for x in allowed if x)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1")
    if rule == "token" and norm_weight is not None:
        raise ValueError(
            "rule='token' solves for a linear output: use norm_weight=None (feature_norm normalises below the last "
            "layer), or rule='chunk'"
        )
    if rule == "token" and limit_steps:
        raise ValueError("limit_steps=True needs rule='chunk': a linear layer's steps have nothing to limit but theta")
    if rule == "chunk" and hidden_lr != 1:
        raise ValueError(f"hidden_lr={hidden_lr} needs rule='token': under rule='chunk' all layers learn alike")
    if not 0 <= hidden_lr < math.inf:
        raise ValueError(f"hidden_lr={hidden_lr} must be a number of at least 0")
    _check_offset(state.offset, chunk_size)
    _check_shapes(inputs, mask, state, residual)
    if state.weights[0].shape[0] != len(q):
        state = state.expand(len(q))
    dtype = torch.promote_types(state.weights[0].dtype, torch.float32)
    norm = _norm_weight(norm_weight, q.shape[2], v.shape[3], dtype)
    network = Network(activation, residual, norm, feature_norm and len(state.weights) > 1)
    options = Options(network, rule, chunk_size, surprise, limit_steps, hidden_lr, is_anchored(rule, state), backend)
    return options, Inputs(*(x.to(dtype).transpose(1, 2) for x in inputs)), state.to(dtype)


def is_anchored(rule: str, state: AssociativeMemoryState) -> bool:
    """Tell whether gradients of some layer are taken at the start of the chunk."""
    return rule == "chunk" or len(state.weights) > 1


def read_memory(
    q: Tensor,
    weights: Sequence[Tensor],
    *,
    activation: str = "gelu",
    residual: bool = True,
    norm_weight: Tensor | None = None,
    feature_norm: bool = False,
) -> Tensor:
    """Read without writing: `M_W(q)`, in the weights' precision, also under autocast.

    Args:
        q: queries `[B, T, H, d_in]`.
        weights: L tensors `[B, H, d_in, d_out]`.
        activation: as of `associative_memory`.
        residual: as of `associative_memory`.
        norm_weight: as of `associative_memory`.
        feature_norm: as of `associative_memory`.

    Returns:
        `[B, T, H, d_out]`, in the precision of q.
    """
    dtype = weights[0].dtype
    norm = _norm_weight(norm_weight, q.shape[2], weights[-1].shape[3], dtype)
    with disable_autocast(q.device):
        y = Network(activation, residual, norm, feature_norm and len(weights) > 1)(weights, q.to(dtype).transpose(1, 2))
    return y.transpose(1, 2).to(q.dtype)


def memory_features(x: Tensor, weights: Sequence[Tensor], *, activation: str = "gelu") -> Tensor:
    """Carry keys or queries through fixed layers before a memory: centred features of length 1 after each.

    Args:
        x: `[B, T, H, d_in]`.
        weights: of the layers, `[H, d_in, d_out]` each.
        activation: as of `associative_memory`.

    Returns:
        `[B, T, H, d_out]`, in the weights' precision (at least float32); x itself where there are no layers.
    """
    if not weights:
        return x
    network = Network(activation, residual=False, norm_weight=None, feature_norm=True)
    dtype = torch.promote_types(weights[0].dtype, torch.float32)
    with disable_autocast(x.device):
        x = x.to(dtype).transpose(1, 2)
        for w in weights:
            x = network.features(x @ w.to(dtype))
    return x.transpose(1, 2)


def _norm_weight(weight: Tensor | None, heads: int, width: int, dtype: torch.dtype) -> Tensor | None:
    """Bring the norm's scale to `[H, 1, d_out]`."""
    if weight is None:
        return None
    if tuple(weight.shape) not in ((width,), (heads, width)):
        raise ValueError(
            f"norm_weight has shape {tuple(weight.shape)}: expected [d_out] or [H, d_out], "
            f"here ({width},) or {(heads, width)}"
        )
    return weight.to(dtype).expand(heads, width).unsqueeze(1)


def _check_offset(offset: int | Tensor, chunk_size: int) -> None:
    if isinstance(offset, Tensor):  # looked at only where that waits for nothing
        offset = int(offset.max()) if offset.device.type == "cpu" and is_concrete(offset) else 0
    if not 0 <= offset < chunk_size:
        raise ValueError(
            f"the state stands {offset} tokens into a chunk, beyond chunk_size={chunk_size}: "
            "continue a stream with the chunk_size it was started with"
        )


def _check_shapes(
    inputs: tuple[Tensor, ...], mask: Tensor | None, state: AssociativeMemoryState, residual: bool
) -> None:
    q, _, _, _, alpha, _ = inputs
    if q.dim() != 4:
        raise ValueError(f"q has shape {tuple(q.shape)}: expected [B, T, H, d]")
    batch, tokens, heads, width = q.shape
    if tokens == 0:
        raise ValueError("q holds no tokens: pass at least one")
    first, last = state.weights[0].shape, state.weights[-1].shape
    gates = (batch, tokens, heads)
    expected = {
        "q": (batch, tokens, first[1], first[2]), "k": (*gates, width), "v": (*gates, last[3]),
        "theta": gates, "alpha": (*gates, *alpha.shape[3:4]), "eta": gates,
    }  # fmt: skip
    given = dict(zip(expected, inputs, strict=True))
    if mask is not None:
        expected["mask"], given["mask"] = (batch, tokens), mask
    for name, x in given.items():
        if tuple(x.shape) != expected[name]:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}: expected {expected[name]} from q and the state's weights"
            )
    if first[0] not in (1, batch):
        raise ValueError(f"the state holds {first[0]} rows and q {batch}: select or repeat the state's rows first")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask has dtype {mask.dtype}: expected torch.bool, True for tokens")
    if residual and first[2] != last[3]:
        raise ValueError(f"residual=True needs equal input and output widths, got {first[2]} and {last[3]}")
    if alpha.dim() == 4 and any(w.shape[-1] % alpha.shape[-1] for w in state.weights):
        raise ValueError(f"channel-wise alpha has {alpha.shape[-1]} channels, which must divide every layer's width")
