"""Time stamps with delays and jitter: the whole times that they lie near."""

from __future__ import annotations

import numpy as np

from titans.forecasting._pandas import pd
from titans.forecasting.numbers import MOSTLY
from titans.forecasting.time_zones import Integers, dates, nearest, ticks

NEAR = 0.25
"""A time stamp is near a grid point when at most this part of a step lies between them."""


def snap(clock: Integers, step: int, second: int | None = None) -> tuple[int, Integers] | None:
    """Find the grid of a step that stamps lie near.

    Its times are as whole as the jitter of the stamps allows, and on the days that these were written for.

    Args:
        clock: ascending stamps, as numbers `[n]`.
        step: the step.
        second: one second in the unit of the stamps; None where they are numbers.

    Returns:
        A time on the grid, and how many steps from it each stamp's grid point lies `[n]`; None where there is no such
        grid.
    """
    since = clock - clock[0]
    if not (since % step).any():
        return int(clock[0]), since // step
    angle = 2 * np.pi * ((since % step) / step)
    centre = int(clock[0]) + round(float(np.arctan2(np.sin(angle).mean(), np.cos(angle).mean())) / (2 * np.pi) * step)
    jitter = 2 * float(np.quantile(np.abs(clock - nearest(clock, step, centre)), MOSTLY))  # delays are on one side
    units = [step] if second is None else [min(step, 3600 * second), 60 * second, second]
    day = step + 1 if second is None else 86400 * second
    origins = [round(centre / unit) * unit for unit in units if unit <= step]
    for origin in (*(origin for origin in origins if abs(origin - centre) <= jitter), centre):
        place = np.rint((clock - origin) / step).astype(np.int64)
        moved = origin + place * step
        off_day = step % day == 0 and (moved // day != clock // day).mean() >= MOSTLY
        if not off_day and (np.abs(moved - clock) <= NEAR * step).mean() >= MOSTLY:
            return origin, place
    return None


def at_one_time(clock: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Move stamps to the one time of day that they lie near; they stay as they are where that is none."""
    day = ticks("1D", clock)
    found = snap(clock.asi8, day, ticks("1s", clock))
    return clock if found is None else dates(found[0] + found[1] * day, clock)


def at_time_of_day(clock: pd.DatetimeIndex, usual: int) -> pd.DatetimeIndex:
    """Move stamps that lie near a time of day to it."""
    day = ticks("1D", clock)
    moved = nearest(clock.asi8, day, usual)
    return dates(np.where(np.abs(moved - clock.asi8) <= NEAR * day, moved, clock.asi8), clock)
