"""The states of the layers: typed trees of tensors, passed in and handed out by value."""

from __future__ import annotations

from torch import Tensor

from titans.ops import AssociativeMemoryState
from titans.ops.state import State

__all__ = ["AttentionState", "MemoryAsContextState", "MemoryAsGateState", "NeuralMemoryState", "State"]


class NeuralMemoryState(State):
    """State of `NeuralMemory`.

    Args:
        memory: the associative memory.
        tail: last inputs of the short convolutions, of queries, keys and values, `[B, 3, 3 D]`; None without.
        gates: gates of the current chunk `[B, G]`, where a chunk shares them; None otherwise.
    """

    memory: AssociativeMemoryState
    tail: Tensor | None
    gates: Tensor | None


class AttentionState(State):
    """State of `SlidingWindowAttention`: its window.

    Args:
        keys: the last keys, without positions, `[B, W, H, d]`; the newest is the last.
        values: their values `[B, W, H, d]`.
        filled: how many of them are real, `[B]`; the first `W - filled` are not.
    """

    keys: Tensor
    values: Tensor
    filled: Tensor


class MemoryAsGateState(State):
    """State of `MemoryAsGate`: those of its two branches."""

    attention: AttentionState
    memory: NeuralMemoryState


class MemoryAsContextState(State):
    """State of `MemoryAsContext`.

    Args:
        memory: the memory as of the last token.
        context: the memory's weights as the last segment left them, L tensors `[B, H, d_in, d_out]`.
        query_tail: last inputs of the retrieval's convolution, `[B, 3, D]`; None without.
        keys: keys of the current segment's retrieved and own tokens, `[B, H, 2 S, d]`; with learned queries, whose
            answers are not stored, of its own tokens only, `[B, H, S, d]`.
        values: their values.
        offset: tokens read of the current segment: one integer, or int64 `[B]`.
    """

    memory: NeuralMemoryState
    context: list[Tensor]
    query_tail: Tensor | None
    keys: Tensor
    values: Tensor
    offset: int | Tensor
