"""Confidence intervals."""

from __future__ import annotations

import math


def wilson(correct: float, asked: float, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a share (Wilson, 1927).

    Args:
        correct: successes.
        asked: trials, at least 1.
        z: standard deviations; 1.96 for 95 %.

    Returns:
        Its lower and upper end.
    """
    share = correct / asked
    centre = share + z * z / (2 * asked)
    spread = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked))
    scale = 1 + z * z / asked
    # Rounding must not push an end to the other side of the share.
    return max(0.0, min(share, (centre - spread) / scale)), min(1.0, max(share, (centre + spread) / scale))
