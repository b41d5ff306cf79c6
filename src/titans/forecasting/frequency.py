"""Regular grids of time: the step between time stamps, and the place of each stamp.

A step is written as a pandas offset alias ("15min", "h", "D", "7D", "B", "MS", "3MS", …), for months on another day
than the first as pandas writes `pd.DateOffset(months=1, day=15)`, or as a whole number where time is whole numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.numbers import MOSTLY
from titans.forecasting.snapping import NEAR, at_one_time, at_time_of_day, snap
from titans.forecasting.time_zones import (
    Integers,
    dates,
    day_of_month,
    from_naive,
    is_daily,
    offset_of,
    ticks,
    time_of_day,
    to_naive,
    wall_time,
    zone_of,
)

FILLED = 0.5
"""The part of a grid's points that must have a time stamp."""

_DAY = pd.Timedelta(days=1)
_MONTH, _HALF_MONTH = 27, 13  # days that they have at least, less one


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
    """Find the equally spaced times of a known step that time stamps lie on or near.

    Args:
        stamps: ascending time stamps `[n]`, at least one: a DatetimeIndex or whole numbers. Equal ones share a place.
        frequency: the step.

    Returns:
        The times from the first to the last stamp.

    Raises:
        TitansError: the stamps do not lie on such times, or leave most of them empty.
    """
    step = _fixed_step(frequency, stamps)
    naive = to_naive(stamps, frequency)
    times, place = _calendar_times(naive, frequency) if step is None else _fixed_times(naive, step, frequency)
    moved = int((_numbers(times)[place] != _numbers(naive)).sum())
    if moved and _distinct(place) < MOSTLY * _distinct(_numbers(stamps)):
        raise TitansError(f"the time stamps are closer together than the frequency {frequency}: aggregate them first")
    return Alignment(from_naive(times.rename(stamps.name), frequency, zone_of(stamps)), place, moved)


def infer_frequency(stamps: pd.Index) -> str | int:
    """Find the step of time stamps that may have gaps and may lie only near a grid.

    Args:
        stamps: ascending time stamps `[n]`: a DatetimeIndex or whole numbers.

    Returns:
        The step; `align` accepts it for these stamps.

    Raises:
        TitansError: there are fewer than two different stamps, or no step covers them.
    """
    stamps = stamps.unique()
    if len(stamps) < 2:
        raise TitansError(f"there is only one time stamp, {stamps[0]}: a step needs at least two")
    for candidate in _candidates(stamps):
        with contextlib.suppress(TitansError):
            align(stamps, candidate)
            return candidate
    raise TitansError(
        f"the time stamps from {stamps[0]} to {stamps[-1]} follow no regular step: they are usually "
        f"{_usual_distance(stamps)} apart, but too many lie elsewhere or are missing; correct wrong ones, cut the data "
        "at long gaps, or resample it"
    )


def future_times(times: pd.Index, frequency: str | int, steps: int) -> pd.Index:
    """The times that continue a grid.

    Args:
        times: the grid.
        frequency: its step.
        steps: how many times to add.

    Returns:
        The next `steps` times.
    """
    if isinstance(frequency, int):
        start = int(times[-1]) + frequency
        return pd.RangeIndex(start, start + steps * frequency, frequency, name=times.name)
    last = to_naive(times, frequency)[-1]
    index = pd.date_range(last, periods=steps + 1, freq=offset_of(frequency), name=times.name, unit=times.unit)[1:]
    return from_naive(pd.DatetimeIndex(index, freq=None), frequency, times.tz)


def steps_after(last: pd.Index, stamps: pd.Index, frequency: str | int) -> npt.NDArray[np.float64]:
    """Say how many steps after the end of a grid time stamps lie; gaps may be of any length.

    Args:
        last: the last time of the grid, on its clock (see `time_zones`) `[1]`.
        stamps: time stamps of the same kind `[n]`.
        frequency: the step of the grid.

    Returns:
        The steps `[n]`, whole numbers, 0 or less for what is not later; NaN for what does not lie on the grid or near.
    """
    step = _fixed_step(frequency, last)
    usual = int(time_of_day(last)[0]) if isinstance(last, pd.DatetimeIndex) else None
    clock = to_naive(stamps, frequency, usual)
    if step is not None or usual is None or not len(clock):
        exact = (_numbers(clock) - _numbers(last)[0]) / step
        return np.where(np.abs(exact - np.rint(exact)) <= NEAR, np.rint(exact), np.nan)
    clock = at_time_of_day(clock, usual)
    if day := day_of_month(frequency):
        clock = _in_month(clock, day, usual)
    times = pd.date_range(last[0], max(last[0], clock.max()), freq=offset_of(frequency), unit=last.unit)
    place = times.get_indexer(clock).astype(np.float64)
    return np.where(clock <= last[0], 0, np.where(place < 0, np.nan, place))


def check_frequency(frequency: str | int) -> None:
    """Refuse a step that is neither a positive number nor an alias that pandas knows.

    Args:
        frequency: the step.

    Raises:
        TitansError: it is not.
    """
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


def _candidates(stamps: pd.Index) -> Iterator[str | int]:
    """Steps to try, the best first."""
    if not isinstance(stamps, pd.DatetimeIndex):
        distances = np.diff(_numbers(stamps))
        numbers = (_mode(distances), round(_refined(distances)), np.gcd.reduce(distances))
        yield from dict.fromkeys(int(number) for number in numbers)
        return
    clock, utc = wall_time(stamps), stamps if stamps.tz is None else stamps.tz_convert(None)
    days = is_daily(clock, utc)  # if not, a day is 24 hours
    clock = clock if days else utc
    if days:
        yield from _calendar_candidates(at_one_time(clock))
    distances = np.diff(clock.asi8)
    mode, refined = _mode(distances), _refined(distances)
    if (distances % mode).any():
        yield from _report_months(clock)
    steps = [*_nice(refined, ticks("1s", stamps)), int(np.gcd.reduce(distances))]
    _, counts = np.unique(clock.asi8 % mode, return_counts=True)
    usual = counts.max() >= MOSTLY * len(clock)  # or it may be what jitter made of a whole step
    for length in dict.fromkeys([mode, *steps] if usual else [*steps[:-1], mode, steps[-1]]):
        yield _alias(length, stamps.unit, days=days or stamps.tz is None)


def _calendar_candidates(clock: pd.DatetimeIndex) -> Iterator[str]:
    """Months, half months and working days, for stamps at one time of day."""
    if len(np.unique(time_of_day(clock))) > 1:
        return
    distances = np.diff(clock.asi8)
    days = np.median(distances) / ticks("1D", clock)
    if days >= _MONTH:
        step = int(np.gcd.reduce(np.diff(_months(clock))))
        for alias in ("MS", "ME", "BMS", "BME"):
            if step and _all_on(alias, clock):
                yield offset_of(f"{step}{alias}").freqstr
        day = _mode(np.asarray(clock.day, dtype=np.int64))
        if step and day > 1 and _on_day(clock, day).mean() >= MOSTLY:
            yield pd.DateOffset(months=step, day=day).freqstr
    elif days >= _HALF_MONTH:
        early = np.unique(clock.day[clock.day < 28])  # of the first and another day, or of another and the last
        alias = f"SMS-{early[-1]}" if len(early) == 2 else f"SME-{early[-1]}" if len(early) == 1 else "SMS-15"
        if alias not in ("SMS-1", "SME-28") and _all_on(alias, clock):
            yield alias
    # A weekend without stamps must lie within them, or these may as well be days of one week.
    weekday = np.asarray(clock.day_of_week)
    if days == 1 and len(clock) >= 5 and (weekday < 5).all() and (np.diff(weekday) < 0).any():
        yield "B"


def _report_months(wall: pd.DatetimeIndex) -> Iterator[str]:
    """Months for stamps on changing days, where no month has two."""
    distances = np.diff(_months(wall))
    if distances.min() > 0 and np.median(np.diff(wall.asi8)) >= _MONTH * ticks("1D", wall):
        step = int(np.gcd.reduce(distances))
        yield offset_of(f"{step}MS").freqstr


def _nice(step: float, second: int) -> Iterator[int]:
    """The step rounded to whole days, hours, minutes, seconds, where that changes it by less than a hundredth."""
    for unit in (86400 * second, 3600 * second, 60 * second, second, max(second // 1000, 1), 1):
        rounded = round(step / unit) * unit
        if rounded and abs(rounded - step) < 0.01 * step:
            yield rounded


def _refined(distances: Integers) -> float:
    """The mean step: the whole time through the number of steps, which jitter hardly changes."""
    return float(distances.sum() / max(np.rint(distances / np.median(distances)).sum(), 1))


def _mode(distances: Integers) -> int:
    values, counts = np.unique(distances, return_counts=True)
    return int(values[counts.argmax()])


def _months(wall: pd.DatetimeIndex) -> Integers:
    return np.asarray(wall.year * 12 + wall.month, dtype=np.int64)


def _alias(step: int, unit: Any, *, days: bool) -> str:
    """Name a step; as days only those of a calendar, which daylight saving makes shorter or longer than 24 hours."""
    length = pd.Timedelta(np.timedelta64(step, unit))
    if length % _DAY == pd.Timedelta(0):
        number = length // _DAY
        return f"{24 * number}h" if not days else "D" if number == 1 else f"{number}D"
    alias: str = offset_of(length).freqstr
    return alias


def _usual_distance(stamps: pd.Index) -> str:
    if not isinstance(stamps, pd.DatetimeIndex):
        return f"{np.median(np.diff(stamps.to_numpy())):g}"
    usual: Any = np.timedelta64(int(np.median(np.diff(stamps.asi8))), stamps.unit)
    return str(pd.Timedelta(usual)).removeprefix("0 days ")


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
    found = snap(_numbers(naive), step, second)
    if found is None:
        raise TitansError(f"the time stamps do not lie near times of the frequency {frequency}")
    origin, place = found
    start, place = origin + int(place[0]) * step, place - place[0]
    _check_filled(place, frequency)
    times = pd.RangeIndex(start, start + (int(place[-1]) + 1) * step, step)
    return (times if second is None else dates(times.to_numpy(), naive)), place


def _check_filled(place: Integers, frequency: str | int) -> None:
    """Refuse a grid that is mostly empty, before it is made: one wrong year must not fill the memory."""
    steps, filled = int(place[-1]) + 1, _distinct(place)
    if filled < FILLED * steps:
        raise TitansError(
            f"there are time stamps for only {filled:,} of the {steps:,} steps of the frequency {frequency}, expected "
            "at least half: correct wrong time stamps, cut the series at long gaps, or resample it"
        )


def _numbers(stamps: pd.Index) -> Integers:
    return np.asarray(stamps.asi8 if isinstance(stamps, pd.DatetimeIndex) else stamps, dtype=np.int64)


def _distinct(ascending: Integers) -> int:
    return 1 + int(np.count_nonzero(np.diff(ascending)))


def _calendar_times(naive: pd.DatetimeIndex, frequency: str | int) -> tuple[pd.Index, Integers]:
    clock = at_one_time(naive)
    if (day := day_of_month(frequency)) and not _on_day(clock, day).all():  # reports on any day
        clock = _in_month(clock, day, 0)
    times = pd.date_range(clock[0], clock[-1], freq=offset_of(frequency), unit=naive.unit)
    place = np.asarray(times.get_indexer(clock), dtype=np.int64)
    if (place < 0).any():
        outside = naive[int((place < 0).argmax())]
        raise TitansError(f"the time stamp {outside} is none of the times that the frequency {frequency} gives")
    _check_filled(place, frequency)
    return pd.DatetimeIndex(times, freq=None), place


def _in_month(clock: pd.DatetimeIndex, day: int, usual: int) -> pd.DatetimeIndex:
    """A day of the months that times lie in, or the last of those that are shorter, at a time of day."""
    first = clock.to_period("M").to_timestamp().as_unit(clock.unit)
    days = np.minimum(day, np.asarray(first.days_in_month, dtype=np.int64)) - 1
    return dates(first.asi8 + days * ticks("1D", clock) + usual, clock)


def _on_day(clock: pd.DatetimeIndex, day: int) -> npt.NDArray[np.bool_]:
    """Whether times lie on a day of their month, or on the last of those that are shorter."""
    return np.asarray(clock.day == np.minimum(day, clock.days_in_month))


def _all_on(alias: str, clock: pd.DatetimeIndex) -> bool:
    return all(offset_of(alias).is_on_offset(stamp) for stamp in clock)
