"""Regular grids of time: the step between time stamps, and the place of each stamp.

A step is written as a pandas offset alias ("15min", "h", "D", "7D", "B", "MS", "3MS", …), or as a whole number where
time is whole numbers. Steps of fixed length are laid over stamps that lie near a grid; calendar steps only over stamps
that lie on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from titans.errors import TitansError
from titans.forecasting._pandas import pd

NEAR = 0.25
"""A time stamp is near a grid point when at most this part of a step lies between them."""
MOSTLY = 0.9
"""The part of all time stamps that must be near the grid for the others to be moved as well."""
FILLED = 0.5
"""The part of a grid's points that must have a time stamp."""

Integers = npt.NDArray[np.int64]
_DAY = pd.Timedelta(days=1)
_MONTH = 27  # days that a month has at least, less one


@dataclasses.dataclass(frozen=True)
class Grid:
    """Equally spaced times, and where each time stamp belongs.

    Args:
        times: the grid `[T]`, a DatetimeIndex or a RangeIndex.
        place: the grid point of each time stamp `[n]`.
        moved: how many time stamps were moved to their grid point.
    """

    times: pd.Index
    place: Integers
    moved: int


def lay(stamps: pd.Index, frequency: str | int) -> Grid:
    """Lay a grid of a known step over time stamps.

    Args:
        stamps: ascending time stamps `[n]`, at least one: a DatetimeIndex or whole numbers. Equal ones share a place.
        frequency: the step.

    Returns:
        The grid from the first to the last stamp.

    Raises:
        TitansError: the stamps do not lie on such a grid, or leave most of it empty.
    """
    step = _fixed_step(frequency, stamps)
    grid = _lay_calendar(stamps, str(frequency)) if step is None else _lay_fixed(stamps, step, frequency)
    if grid.moved and _distinct(grid.place) < MOSTLY * _distinct(_numbers(stamps)):
        raise TitansError(f"the time stamps are closer together than the frequency {frequency}: aggregate them first")
    return grid


def find_frequency(stamps: pd.Index) -> str | int:
    """Find the step of time stamps that may have gaps and may lie only near a grid.

    Args:
        stamps: ascending time stamps `[n]`: a DatetimeIndex or whole numbers.

    Returns:
        The step; `lay` accepts it for these stamps.

    Raises:
        TitansError: there are fewer than two different stamps, or no step covers them.
    """
    stamps = stamps.unique()
    if len(stamps) < 2:
        raise TitansError(f"there is only one time stamp, {stamps[0]}: a step needs at least two")
    for candidate in _candidates(stamps):
        with contextlib.suppress(TitansError):
            lay(stamps, candidate)
            return candidate
    raise TitansError(
        f"the time stamps from {stamps[0]} to {stamps[-1]} follow no regular step: they are usually "
        f"{_usual_distance(stamps)} apart, but too many lie elsewhere or are missing; correct wrong ones, cut the data "
        "at long gaps, or resample it"
    )


def following(times: pd.Index, frequency: str | int, steps: int) -> pd.Index:
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
    index = pd.date_range(times[-1], periods=steps + 1, freq=frequency, name=times.name, unit=times.unit)[1:]
    return pd.DatetimeIndex(index, freq=None)


def places_after(last: pd.Index, stamps: pd.Index, frequency: str | int) -> Integers:
    """Say how many steps after the end of a grid later time stamps lie; gaps may be of any length.

    Args:
        last: the last time of the grid `[1]`.
        stamps: ascending time stamps `[n]`, of the same kind and time zone.
        frequency: the step of the grid.

    Returns:
        The steps `[n]`, ascending; 0 or less for what is not later.

    Raises:
        TitansError: a time stamp does not lie on the grid, or near it.
    """
    step = _fixed_step(frequency, last)
    if step is None:
        offset = _offset(frequency)
        first, clock = _wall(last)[0], _wall(stamps)
        if isinstance(offset, pd.offsets.MonthBegin):
            clock = pd.DatetimeIndex(clock.to_period("M").to_timestamp()).as_unit(clock.unit)
        times = pd.date_range(min(first, clock[0]), max(first, clock[-1]), freq=offset, unit=clock.unit)
        place = times.get_indexer(clock)
        outside = place < 0
        place = place - times.get_loc(first)
    else:
        days = not isinstance(frequency, int) and isinstance(_offset(frequency), pd.offsets.Day)
        origin, clock = (_wall(last), _wall(stamps)) if days else (last, stamps)
        exact = (_numbers(clock) - _numbers(origin)[0]) / step
        place = np.rint(exact)
        outside = np.abs(exact - place) > NEAR
    if outside.any():
        raise TitansError(
            f"the time stamp {stamps[int(outside.argmax())]} does not lie on the grid that goes on from {last[0]} with "
            f"the frequency {frequency}"
        )
    return np.asarray(place, dtype=np.int64)


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
        positive = _offset(frequency).n > 0
    except (ValueError, TypeError, AttributeError):
        positive = False
    if not positive:
        raise TitansError(f'"{frequency}" is not a frequency: expected a pandas alias such as 15min, h, D, W-SUN or MS')


def _candidates(stamps: pd.Index) -> Iterator[str | int]:
    """Steps to try, the best first."""
    if not isinstance(stamps, pd.DatetimeIndex):
        distances = np.diff(_numbers(stamps))
        steps = (_mode(distances), round(_refined(distances)), np.gcd.reduce(distances))
        yield from dict.fromkeys(int(step) for step in steps)
        return
    wall = _wall(stamps)
    one_time = _one_time(wall)
    distances = np.diff((wall if one_time else stamps).asi8)
    if one_time:
        yield from _calendar_candidates(wall)
    mode, refined = _mode(distances), _refined(distances)
    if (distances % mode).any():  # of steps that fit exactly, the usual distance comes first
        yield from _report_months(wall)
    for step in dict.fromkeys([mode, *_nice(refined, _ticks("1s", stamps)), int(np.gcd.reduce(distances))]):
        yield _alias(step, stamps.unit, days=one_time or stamps.tz is None)


def _calendar_candidates(wall: pd.DatetimeIndex) -> Iterator[str]:
    """Months, and working days, for stamps at one time of day."""
    days = np.median(np.diff(wall.asi8)) / _ticks("1D", wall)
    if days >= _MONTH:
        step = int(np.gcd.reduce(np.diff(_months(wall))))
        for alias in ("MS", "ME", "BMS", "BME"):
            offset = pd.tseries.frequencies.to_offset(alias)
            if step and all(offset.is_on_offset(stamp) for stamp in wall):
                yield alias if step == 1 else f"{step}{alias}"
    # A weekend without stamps must lie within them, or these may as well be days of one week.
    weekday = np.asarray(wall.day_of_week)
    if days == 1 and len(wall) >= 5 and (weekday < 5).all() and (np.diff(weekday) < 0).any():
        yield "B"


def _report_months(wall: pd.DatetimeIndex) -> Iterator[str]:
    """Months for stamps on changing days, where no month has two."""
    distances = np.diff(_months(wall))
    if distances.min() > 0 and np.median(np.diff(wall.asi8)) >= _MONTH * _ticks("1D", wall):
        step = int(np.gcd.reduce(distances))
        yield "MS" if step == 1 else f"{step}MS"


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
    alias: str = pd.tseries.frequencies.to_offset(length).freqstr
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
    offset = _offset(frequency)
    if isinstance(offset, pd.offsets.Day):
        return int(offset.n) * _ticks("1D", stamps)
    return _ticks(offset, stamps) if isinstance(offset, pd.offsets.Tick) else None


def _lay_fixed(stamps: pd.Index, step: int, frequency: str | int) -> Grid:
    if not isinstance(stamps, pd.DatetimeIndex):
        numbers = _numbers(stamps)
        origin, place = _places(numbers, step, frequency, [step])
        times = pd.RangeIndex(origin, origin + (int(place[-1]) + 1) * step, step, name=stamps.name)
        return Grid(times, place, int((times.to_numpy()[place] != numbers).sum()))
    days = isinstance(_offset(frequency), pd.offsets.Day)
    clock = _wall(stamps) if days else stamps  # a day is a day on the wall clock, also where clocks change
    second = _ticks("1s", stamps)
    origin, place = _places(clock.asi8, step, frequency, [step, 3600 * second, 60 * second, second])
    values = origin + step * np.arange(int(place[-1]) + 1)
    times = pd.DatetimeIndex(values.view(f"M8[{stamps.unit}]"), name=stamps.name)
    moved = int((values[place] != clock.asi8).sum())
    if stamps.tz is not None:
        times = _localize(times, stamps.tz) if days else times.tz_localize("UTC").tz_convert(stamps.tz)
    return Grid(times, place, moved)


def _places(clock: Integers, step: int, frequency: str | int, units: list[int]) -> tuple[int, Integers]:
    """The grid's origin, if possible on a whole unit where stamps are only near, and the grid point of each stamp."""
    since = clock - clock[0]
    origin, place = int(clock[0]), since // step
    if (since % step).any():
        angle = 2 * np.pi * ((since % step) / step)
        centre = origin + float(np.arctan2(np.sin(angle).mean(), np.cos(angle).mean())) / (2 * np.pi) * step
        for origin in (*(round(centre / unit) * unit for unit in units if unit <= step), round(centre)):
            exact = (clock - origin) / step
            place = np.rint(exact).astype(np.int64)
            if (np.abs(exact - place) <= NEAR).mean() >= MOSTLY:
                break
        else:
            raise TitansError(f"the time stamps do not lie near a grid of the frequency {frequency}")
    _check_filled(place - place[0], frequency)
    return origin + int(place[0]) * step, place - place[0]


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


def _lay_calendar(stamps: pd.DatetimeIndex, frequency: str) -> Grid:
    offset = _offset(frequency)
    clock = wall = _wall(stamps)
    if isinstance(offset, pd.offsets.MonthBegin) and (wall.day != 1).any():  # reports on any day of the month
        clock = pd.DatetimeIndex(wall.to_period("M").to_timestamp()).as_unit(wall.unit)
    times = pd.DatetimeIndex(pd.date_range(clock[0], clock[-1], freq=offset, unit=stamps.unit), freq=None)
    place = np.asarray(times.get_indexer(clock), dtype=np.int64)
    if (place < 0).any():
        outside = stamps[int((place < 0).argmax())]
        raise TitansError(f"the time stamp {outside} is none of the times that the frequency {frequency} gives")
    _check_filled(place, frequency)
    times = times.rename(stamps.name)
    return Grid(times if stamps.tz is None else _localize(times, stamps.tz), place, int((clock != wall).sum()))


def _one_time(wall: pd.DatetimeIndex) -> bool:
    """Whether all stamps have one time of day."""
    return len(np.unique(wall.asi8 % _ticks("1D", wall))) == 1


def _wall(stamps: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """What a clock on the wall showed."""
    return stamps if stamps.tz is None else stamps.tz_localize(None)


def _localize(wall: pd.DatetimeIndex, zone: object) -> pd.DatetimeIndex:
    """From a clock on the wall to times; an hour that a clock skips becomes the next, of a doubled one the first."""
    return wall.tz_localize(zone, ambiguous=np.ones(len(wall), dtype=bool), nonexistent="shift_forward")


@functools.cache
def _offset(alias: str | int) -> Any:
    return pd.tseries.frequencies.to_offset(alias)


def _ticks(length: Any, stamps: pd.DatetimeIndex) -> int:
    """A length of time in the unit that the stamps count in."""
    length = pd.Timedelta(length)
    try:
        return int(length.as_unit(stamps.unit, round_ok=False).to_timedelta64().astype(np.int64))
    except ValueError as error:
        raise TitansError(f"the time stamps count in {stamps.unit}, too coarse for the step {length}") from error
