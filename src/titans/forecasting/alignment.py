"""Equally spaced times of a known step, and where time stamps that lie on or near them belong."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.numbers import MOSTLY
from titans.forecasting.time_zones import (
    Integers,
    dates,
    day_of_month,
    from_naive,
    nearest,
    offset_of,
    ticks,
    time_of_day,
    to_naive,
    zone_of,
)

FILLED = 0.5
"""The part of equally spaced times that must have a time stamp."""
_NEAR = 0.25  # of a step, that a time stamp may lie off


@dataclasses.dataclass(frozen=True)
class Alignment:
    """Equally spaced times, and where each time stamp belongs.

    Args:
        times: the grid `[T]`, a DatetimeIndex or a RangeIndex.
        place: the grid point of each time stamp `[n]`.
        moved: how many time stamps were moved to their grid point.
    """

    times: pd.Index
    place: Integers
    moved: int


def align(stamps: pd.Index, frequency: str | int) -> Alignment:
    """Find the equally spaced times of a known step that ascending stamps `[n]` lie on or near, first to last.

    Raises:
        TitansError: the stamps do not lie on such times, or leave most of them empty.
    """
    step = _fixed_step(frequency, stamps)
    naive = to_naive(stamps, frequency)
    times, place = _calendar_times(naive, frequency) if step is None else _fixed_times(naive, step, frequency)
    moved = int((as_integers(times)[place] != as_integers(naive)).sum())
    if moved and _distinct(place) < MOSTLY * _distinct(as_integers(stamps)):
        raise TitansError(f"the time stamps are closer together than the frequency {frequency}: aggregate them first")
    return Alignment(from_naive(times.rename(stamps.name), frequency, zone_of(stamps)), place, moved)


def steps_after(last: pd.Index, stamps: pd.Index, frequency: str | int) -> npt.NDArray[np.float64]:
    """Say how many steps after the last time of a grid, `[1]` and naive (see `to_naive`), stamps `[n]` lie.

    Returns:
        Whole numbers `[n]`, 0 or less for what is not later; NaN for what does not lie on the grid or near.
    """
    step = _fixed_step(frequency, last)
    usual = int(time_of_day(last)[0]) if isinstance(last, pd.DatetimeIndex) else None
    naive = to_naive(stamps, frequency, usual)
    if step is not None or usual is None or not len(naive):
        exact = (as_integers(naive) - as_integers(last)[0]) / step
        return np.where(np.abs(exact - np.rint(exact)) <= _NEAR, np.rint(exact), np.nan)
    naive = _at_time_of_day(naive, usual)
    if day := day_of_month(frequency):
        naive = _in_month(naive, day, usual)
    times = pd.date_range(last[0], max(last[0], naive.max()), freq=offset_of(frequency), unit=last.unit)
    place = times.get_indexer(naive).astype(np.float64)
    return np.where(naive <= last[0], 0, np.where(place < 0, np.nan, place))


def check_frequency(frequency: str | int) -> None:
    """Refuse a step that is neither a positive number nor an alias that pandas knows."""
    if isinstance(frequency, int):
        if isinstance(frequency, bool) or frequency < 1:
            raise TitansError(f"the frequency of whole-number time must be at least 1, not {frequency}")
        return
    try:
        positive = offset_of(frequency).n > 0
    except (ValueError, TypeError, AttributeError):
        positive = False
    if not positive:
        raise TitansError(f'"{frequency}" is not a frequency: expected a pandas alias such as 15min, h, D, W-SUN or MS')


def _fixed_step(frequency: str | int, stamps: pd.Index) -> int | None:
    """The step in the unit of the stamps; None where its length depends on the calendar."""
    check_frequency(frequency)
    numbers = not isinstance(stamps, pd.DatetimeIndex)
    if numbers != isinstance(frequency, int):
        kind = "whole numbers, which need a whole number" if numbers else "dates, which need a pandas alias such as h"
        raise TitansError(f"the frequency {frequency!r} does not fit the time stamps: they are {kind}")
    if isinstance(frequency, int):
        return frequency
    offset = offset_of(frequency)
    if isinstance(offset, pd.offsets.Day):
        return int(offset.n) * ticks("1D", stamps)
    return ticks(offset, stamps) if isinstance(offset, pd.offsets.Tick) else None


def _fixed_times(naive: pd.Index, step: int, frequency: str | int) -> tuple[pd.Index, Integers]:
    second = ticks("1s", naive) if isinstance(naive, pd.DatetimeIndex) else None
    found = _snap(as_integers(naive), step, second)
    if found is None:
        raise TitansError(f"the time stamps do not lie near times of the frequency {frequency}")
    origin, place = found
    start, place = origin + int(place[0]) * step, place - place[0]
    _check_filled(place, frequency)
    times = pd.RangeIndex(start, start + (int(place[-1]) + 1) * step, step)
    return (times if second is None else dates(times.to_numpy(), naive)), place


def _snap(naive: Integers, step: int, second: int | None = None) -> tuple[int, Integers] | None:
    """Find a time on the grid that ascending stamps `[n]` lie near, and how many steps from it the point of each lies.

    The grid is as whole as the jitter of the stamps allows, and on the days that these were written for; None where
    there is none. `second` is one in the unit of the stamps, None where they are numbers.
    """
    since = naive - naive[0]
    if not (since % step).any():
        return int(naive[0]), since // step
    angle = 2 * np.pi * ((since % step) / step)
    centre = int(naive[0]) + round(float(np.arctan2(np.sin(angle).mean(), np.cos(angle).mean())) / (2 * np.pi) * step)
    jitter = 2 * float(np.quantile(np.abs(naive - nearest(naive, step, centre)), MOSTLY))  # delays are on one side
    units = [step] if second is None else [min(step, 3600 * second), 60 * second, second]
    day = step + 1 if second is None else 86400 * second
    origins = [round(centre / unit) * unit for unit in units if unit <= step]
    for origin in (*(origin for origin in origins if abs(origin - centre) <= jitter), centre):
        place = np.rint((naive - origin) / step).astype(np.int64)
        moved = origin + place * step
        off_day = step % day == 0 and (moved // day != naive // day).mean() >= MOSTLY
        if not off_day and (np.abs(moved - naive) <= _NEAR * step).mean() >= MOSTLY:
            return origin, place
    return None


def _calendar_times(naive: pd.DatetimeIndex, frequency: str | int) -> tuple[pd.Index, Integers]:
    moved = at_one_time(naive)
    if (day := day_of_month(frequency)) and not on_day(moved, day).all():  # reports on any day
        moved = _in_month(moved, day, 0)
    times = pd.date_range(moved[0], moved[-1], freq=offset_of(frequency), unit=naive.unit)
    place = np.asarray(times.get_indexer(moved), dtype=np.int64)
    if (place < 0).any():
        outside = naive[int((place < 0).argmax())]
        raise TitansError(f"the time stamp {outside} is none of the times that the frequency {frequency} gives")
    _check_filled(place, frequency)
    return pd.DatetimeIndex(times, freq=None), place


def at_one_time(naive: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Move stamps to the one time of day that they lie near; they stay as they are where that is none."""
    day = ticks("1D", naive)
    found = _snap(naive.asi8, day, ticks("1s", naive))
    return naive if found is None else dates(found[0] + found[1] * day, naive)


def _at_time_of_day(naive: pd.DatetimeIndex, usual: int) -> pd.DatetimeIndex:
    """Move stamps that lie near a time of day to it."""
    day = ticks("1D", naive)
    moved = nearest(naive.asi8, day, usual)
    return dates(np.where(np.abs(moved - naive.asi8) <= _NEAR * day, moved, naive.asi8), naive)


def _in_month(naive: pd.DatetimeIndex, day: int, usual: int) -> pd.DatetimeIndex:
    """A day of the months that times lie in, or the last of those that are shorter, at a time of day."""
    first = naive.to_period("M").to_timestamp().as_unit(naive.unit)
    days = np.minimum(day, np.asarray(first.days_in_month, dtype=np.int64)) - 1
    return dates(first.asi8 + days * ticks("1D", naive) + usual, naive)


def on_day(naive: pd.DatetimeIndex, day: int) -> npt.NDArray[np.bool_]:
    """Whether times lie on a day of their month, or on the last of those that are shorter."""
    return np.asarray(naive.day == np.minimum(day, naive.days_in_month))


def _check_filled(place: Integers, frequency: str | int) -> None:
    """Refuse a grid that is mostly empty, before it is made: one wrong year must not fill the memory."""
    steps, filled = int(place[-1]) + 1, _distinct(place)
    if filled < FILLED * steps:
        raise TitansError(
            f"there are time stamps for only {filled:,} of the {steps:,} steps of the frequency {frequency}, expected "
            "at least half: correct wrong time stamps, cut the series at long gaps, or resample it"
        )


def as_integers(stamps: pd.Index) -> Integers:
    """Time stamps as numbers, dates in their unit."""
    return np.asarray(stamps.asi8 if isinstance(stamps, pd.DatetimeIndex) else stamps, dtype=np.int64)


def _distinct(ascending: Integers) -> int:
    return 1 + int(np.count_nonzero(np.diff(ascending)))
