"""The state of the linear recurrences between two tokens."""

from __future__ import annotations

from torch import Tensor

from titans.ops.state import State


class GatedDeltaRuleState(State):
    """Everything a linear recurrence holds between tokens.

    Args:
        matrix: the memory `S_t` of each head, `[B, H, d_k, d_v]`.
    """

    matrix: Tensor
