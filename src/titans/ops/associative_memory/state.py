"""The state of the associative memory between two tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from titans.ops.state import State


class AssociativeMemoryState(State):
    """Everything the memory holds between tokens (docs/semantics.md, section 1).

    Args:
        weights: running weights `W_t`, L tensors `[B, H, d_in, d_out]`.
        surprise: past surprise `S_t`, shaped like `weights`.
        anchor: the weights at the start of the current chunk, where gradients are taken; shaped like `weights`.
        offset: tokens read of the current chunk: one integer, or int64 `[B]` once the rows have read
            different numbers of tokens.
    """

    weights: list[Tensor]
    surprise: list[Tensor]
    anchor: list[Tensor]
    offset: int | Tensor


def initial_state(weights: Sequence[Tensor], batch_size: int | None = None) -> AssociativeMemoryState:
    """Start a memory from its initial weights, with no surprise.

    Args:
        weights: L tensors `[H, d_in, d_out]`, shared by the rows, or `[B, H, d_in, d_out]`.
            Half-precision weights are widened: the inner state is at least float32.
        batch_size: B, needed only to expand unbatched weights beyond one row. Default: 1, or the weights' own.

    Returns:
        The state before the first token; differentiable in `weights`.

    Raises:
        ValueError: the weights are not a chain of matrices with equal batch and heads.
    """
    if not weights:
        raise ValueError("weights is empty: pass one tensor [H, d_in, d_out] per memory layer")
    batched = []
    for i, w in enumerate(weights):
        if w.dim() not in (3, 4):
            raise ValueError(
                f"weights[{i}] has shape {tuple(w.shape)}: expected [H, d_in, d_out] or [B, H, d_in, d_out]"
            )
        w = w.unsqueeze(0) if w.dim() == 3 else w
        if batch_size is not None:
            if w.shape[0] not in (1, batch_size):
                raise ValueError(f"weights[{i}] holds {w.shape[0]} rows, which batch_size={batch_size} does not fit")
            w = w.expand(batch_size, -1, -1, -1)
        batched.append(w.to(torch.promote_types(w.dtype, torch.float32)))
    for i, (a, b) in enumerate(pairwise(batched)):
        if a.shape[:2] != b.shape[:2] or a.shape[3] != b.shape[2]:
            raise ValueError(
                f"weights[{i}] {tuple(a.shape)} does not feed weights[{i + 1}] {tuple(b.shape)}: "
                "batch and heads must agree and d_out must equal the next d_in"
            )
    return AssociativeMemoryState(batched, [torch.zeros_like(w) for w in batched], list(batched), 0)
