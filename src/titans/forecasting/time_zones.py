"""Naive times, in which all steps of a frequency are alike: local for days, weeks and months, in UTC for hours."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from titans.errors import TitansError
from titans.forecasting._pandas import pd

Integers = npt.NDArray[np.int64]
_MONTHS_ON_A_DAY = re.compile(r"<DateOffset: day=([1-9]|[12]\d|3[01]), months=([1-9]\d*)>")
_SKIPPED = "2h"  # that a naive is put forward, at most
_ONE_TIME = 0.5  # the circular variance of times of day that are taken for one, at most; of all hours it is 1


def to_naive(stamps: pd.Index, frequency: str | int, usual: int | None = None) -> pd.Index:
    """Take the time zone off: local times for days, weeks and months, UTC for hours and less.

    `usual` is the time of day that days begin at, in the unit of the stamps; by default the most frequent one.
    """
    if zone_of(stamps) is None:
        return stamps
    return stamps.tz_convert(None) if _absolute(frequency) else wall_time(stamps, usual)


def from_naive(naive: pd.Index, frequency: str | int, zone: Any) -> pd.Index:
    """Undo `to_naive`; a local time that is skipped becomes the next one, of a doubled one the first is meant."""
    if zone is None:
        return naive
    return (
        naive.tz_localize("UTC").tz_convert(zone) if _absolute(frequency) else _localize(naive, zone, "shift_forward")
    )


def wall_time(stamps: pd.DatetimeIndex, usual: int | None = None) -> pd.DatetimeIndex:
    """Local times; where the usual time of day (see `to_naive`) is skipped as clocks go forward, that time."""
    if stamps.tz is None:
        return stamps
    shown = stamps.tz_localize(None)
    if usual is None:
        times, counts = np.unique(time_of_day(shown), return_counts=True)
        usual = int(times[counts.argmax()])
    expected = dates(nearest(shown.asi8, ticks("1D", shown), usual), shown)
    late = shown.asi8 - expected.asi8
    skipped = (late >= 0) & (late <= ticks(_SKIPPED, shown))
    skipped[skipped] = _localize(expected[skipped], stamps.tz, "NaT").isna()
    return dates(np.where(skipped, expected.asi8, shown.asi8), shown)


def is_daily(wall: pd.DatetimeIndex, utc: pd.DatetimeIndex) -> bool:
    """Whether times lie near one time of day, in local time no less than in UTC.

    False where they are usually less than 20 hours apart. Where no zone is known, both are the same.
    """
    days = wall.unique().sort_values()
    if len(days) < 2 or np.median(np.diff(days.asi8)) < ticks("20h", days):
        return False
    return _variance(wall) <= min(_variance(utc) + 1e-9, _ONE_TIME)


def time_of_day(naive: pd.DatetimeIndex) -> Integers:
    """The time since midnight `[n]`, in the unit of the times."""
    return np.asarray(naive.asi8 % ticks("1D", naive), dtype=np.int64)


def nearest(numbers: Integers, step: int, origin: int) -> Integers:
    """The points of a grid of `step` through `origin` that numbers `[n]` lie nearest to."""
    half = step // 2
    return np.asarray(numbers + (origin - numbers + half) % step - half, dtype=np.int64)


def dates(numbers: Integers, like: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Times without a time zone from numbers in the unit of others."""
    return pd.DatetimeIndex(np.asarray(numbers, dtype=np.int64).view(f"M8[{like.unit}]"), name=like.name)


def zone_of(stamps: pd.Index) -> Any:
    """The time zone of dates; None where there is none, and of whole numbers."""
    return stamps.tz if isinstance(stamps, pd.DatetimeIndex) else None


def day_of_month(frequency: Any) -> int | None:
    """The day that months of a frequency begin at; None where it does not count in months, or from their ends."""
    offset = offset_of(frequency)
    day: int | None = 1 if isinstance(offset, pd.offsets.MonthBegin) else offset.kwds.get("day")
    return day


@functools.cache
def offset_of(alias: Any) -> Any:
    """What pandas makes of a frequency, or of what it writes of months on a day, for which it has no alias."""
    if found := _MONTHS_ON_A_DAY.fullmatch(str(alias)):
        return pd.DateOffset(months=int(found[2]), day=int(found[1]))  # the last day where a month is shorter
    return pd.tseries.frequencies.to_offset(alias)


def ticks(length: Any, stamps: pd.DatetimeIndex) -> int:
    """A length of time in the unit that the stamps count in."""
    length = pd.Timedelta(length)
    try:
        return int(length.as_unit(stamps.unit, round_ok=False).to_timedelta64().astype(np.int64))
    except ValueError as error:
        raise TitansError(f"the time stamps count in {stamps.unit}, too coarse for the step {length}") from error


def _absolute(frequency: str | int) -> bool:
    """Whether a step always lasts as long: a day does not, where clocks change."""
    return isinstance(offset_of(frequency), pd.offsets.Tick) and not isinstance(offset_of(frequency), pd.offsets.Day)


def _localize(naive: pd.DatetimeIndex, zone: Any, skipped: str) -> pd.DatetimeIndex:
    return naive.tz_localize(zone, ambiguous=np.ones(len(naive), dtype=bool), nonexistent=skipped)


def _variance(naive: pd.DatetimeIndex) -> float:
    """The circular variance of times of day, from 0 (all alike) to 1."""
    angle = 2 * np.pi * (time_of_day(naive) / ticks("1D", naive))
    return float(1 - np.hypot(np.sin(angle).mean(), np.cos(angle).mean()))
