"""Confidence intervals."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # 97.5 % of Student's t, 1 … 10


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


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean, as of one model over seeds.

    Args:
        mean: the mean.
        half_width: of its 95 % interval (Student's t); None with one number.
        seeds: how many numbers went in.
    """

    mean: float
    half_width: float | None
    seeds: int

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Mean | None:
        """Return the mean of numbers, None of none."""
        if not numbers:
            return None
        half = None
        if len(numbers) > 1:
            half = student_t(len(numbers) - 1) * statistics.stdev(numbers) / math.sqrt(len(numbers))
        return cls(statistics.fmean(numbers), half, len(numbers))


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, by an expansion in 1/n beyond 10 degrees of freedom."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = 1.959964, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / n + second / n**2 + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
