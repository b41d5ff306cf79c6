"""The states of the layers: typed trees of tensors, passed in and handed out by value."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from titans.ops import AssociativeMemoryState, GatedDeltaRuleState, SelectiveScanState
from titans.ops.state import GrowingState, State

__all__ = [
    "AttentionState",
    "FullAttentionState",
    "GrowingState",
    "LinearRecurrenceState",
    "MemoryAsContextState",
    "MemoryAsGateState",
    "NeuralMemoryState",
    "SegmentState",
    "SelectiveStateSpaceState",
    "State",
    "WriteState",
]


class WriteState(State):
    """Which tokens a memory layer writes, and how it has gone so far (docs/semantics.md, section 6); all `[B]`.

    Args:
        threshold: a token is written where the smoothed surprise is above it; -inf writes every token and +inf none,
            and then nothing is measured.
        mean: of the gradient norm, over the last hundred tokens or so.
        deviation: its standard deviation.
        largest_z: a token whose gradient norm lies more deviations than this above the mean so far is dropped.
        smoothing: beta, how much of the smoothed surprise and of the activity stays from token to token.
        decay: lambda, what a written token forgets per unit of activity.
        smoothed: the smoothed surprise `s_t`.
        activity: how much has been written of late, `a_t`.
        written: tokens written so far, int64.
        skipped: tokens left out because they did not surprise, int64.
        dropped: tokens left out as outliers, int64.
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("threshold", "largest_z")

    threshold: Tensor
    mean: Tensor
    deviation: Tensor
    largest_z: Tensor
    smoothing: Tensor
    decay: Tensor
    smoothed: Tensor
    activity: Tensor
    written: Tensor
    skipped: Tensor
    dropped: Tensor

    def check(self) -> None:
        """Refuse numbers that no stream has; see `State.check`."""
        slack = torch.finfo(self.decay.dtype).eps  # smoothing and decay have each been rounded
        rules = {
            "threshold": (~self.threshold.isnan(), "a number"),
            "mean": (self.mean.isfinite(), "finite"),
            "deviation": (self.deviation.isfinite() & (self.deviation >= 0), "finite and at least 0"),
            "largest_z": (self.largest_z > 0, "above 0"),
            "smoothing": ((self.smoothing >= 0) & (self.smoothing < 1), "from 0 to below 1"),
            "decay": ((self.decay >= 0) & (self.decay <= 1 - self.smoothing + slack), "from 0 to 1 - smoothing"),
            "smoothed": (self.smoothed.isfinite(), "finite"),
            "activity": (self.activity.isfinite() & (self.activity >= 0), "finite and at least 0"),
            **{n: (getattr(self, n) >= 0, "at least 0") for n in ("written", "skipped", "dropped")},
        }
        for name, (right, expected) in rules.items():
            if not bool(right.all()):
                raise ValueError(f"{name}={getattr(self, name)[~right][0].item()} must be {expected}")


class NeuralMemoryState(State):
    """State of `NeuralMemory`.

    Args:
        memory: the associative memory.
        conv_state: last inputs of the short convolutions, of queries, keys and values, `[B, 3, 3 D]`; None without.
        gates: gates of the current chunk `[B, G]`, where a chunk shares them; None otherwise.
        writing: which tokens are written; None: every one.
    """

    memory: AssociativeMemoryState
    conv_state: Tensor | None
    gates: Tensor | None
    writing: WriteState | None = None


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


class FullAttentionState(GrowingState):
    """State of `FullAttention`: all that was read.

    Args:
        filled: tokens read, `[B]`, int64.
        keys: their keys, with positions, `[B, M, D]`; the newest is the last.
        values: their values `[B, M, D]`.
    """

    keys: Tensor
    values: Tensor


class LinearRecurrenceState(State):
    """State of the mixers over `titans.ops.gated_delta_rule`.

    Args:
        memory: the memory of each head.
        conv_state: last inputs of the short convolutions, `[B, 3, C]`; None without.
    """

    memory: GatedDeltaRuleState
    conv_state: Tensor | None


class SelectiveStateSpaceState(State):
    """State of `Mamba`.

    Args:
        memory: the state space model's own.
        conv_state: last inputs of the short convolution, `[B, 3, C]`.
    """

    memory: SelectiveScanState
    conv_state: Tensor


class MemoryAsGateState(State):
    """State of `MemoryAsGate`: those of its two branches."""

    attention: AttentionState
    memory: NeuralMemoryState


class MemoryAsContextState(State):
    """State of `MemoryAsContext`.

    Args:
        memory: the memory as of the last token.
        context: the memory's weights as the last segment left them, L tensors `[B, H, d_in, d_out]`.
        query_conv_state: last inputs of the retrieval's convolution, `[B, 3, D]`; None without.
        keys: keys of the current segment's retrieved and own tokens, `[B, H, 2 S, d]`; with learned queries, whose
            answers are not stored, of its own tokens only, `[B, H, S, d]`.
        values: their values.
        offset: tokens read of the current segment: one integer, or int64 `[B]`.
    """

    memory: NeuralMemoryState
    context: list[Tensor]
    query_conv_state: Tensor | None
    keys: Tensor
    values: Tensor
    offset: int | Tensor


class SegmentState(State):
    """What RMT carries besides the keys and values of the open segment.

    Args:
        memory: the memory tokens that the last segment left, `[B, m, D]`.
        offset: tokens read of the current segment: one integer, or int64 `[B]`.
    """

    memory: Tensor
    offset: int | Tensor
