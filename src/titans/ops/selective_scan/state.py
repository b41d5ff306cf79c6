"""The state of the selective scan between two tokens."""

from __future__ import annotations

from torch import Tensor

from titans.ops.state import State


class SelectiveScanState(State):
    """Everything a selective state space model holds between tokens.

    Args:
        vector: `h_t` of each channel, `[B, D, S]`.
    """

    vector: Tensor
