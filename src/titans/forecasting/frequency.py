"""The step of time: inferred from time stamps that may have gaps and lie only near equally spaced times.

A step is written as a pandas offset alias ("15min", "h", "D", "7D", "B", "MS", "3MS", …), for months on another day
than the first as pandas writes `pd.DateOffset(months=1, day=15)`, or as a whole number where time is whole numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.alignment import Alignment, align, as_integers, at_one_time, on_day
from titans.forecasting.numbers import MOSTLY
from titans.forecasting.time_zones import (
    Integers,
    from_naive,
    is_daily,
    offset_of,
    ticks,
    time_of_day,
    to_naive,
    wall_time,
)

_DAY = pd.Timedelta(days=1)
_MONTH, _HALF_MONTH = 27, 13  # days that they have at least, less one
_FEW = 3  # rows that no step can be told from
_VOTERS = 20  # of many series, the longest decide on the frequency
_A_YEAR = {"Y": 1, "A": 1, "Q": 4, "M": 12, "S": 24, "W": 52}  # steps, by the first letter of an alias without "B"


def infer_frequency(stamps: pd.Index) -> str | int:
    """Find the step of ascending stamps `[n]`, dates or whole numbers, that may have gaps and lie only near a grid.

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
    usual = str(stamps.to_series().diff().median()).removeprefix("0 days ")
    raise TitansError(
        f"the time stamps from {stamps[0]} to {stamps[-1]} follow no regular step: they are usually "
        f"{usual} apart, but too many lie elsewhere or are missing; correct wrong ones, cut the data "
        "at long gaps, or resample it"
    )


def align_all(
    ids: list[object], times: list[pd.Index], frequency: str | int | None
) -> tuple[str | int, list[Alignment | None]]:
    """Align the times of every series, all to one frequency: to that given, or the first likely one that fits all.

    Returns:
        The step, and the alignment of each series. Beside longer ones, series of a few rows have no say: where they do
        not fit, it is None.

    Raises:
        TitansError: no step fits all others.
    """
    refused: TitansError | None = None
    few = _FEW if max(map(len, times)) > _FEW else 0
    for candidate in [frequency] if frequency is not None else _likely(ids, times, few):
        try:
            aligned: list[Alignment | None] = []
            for name, stamps in zip(ids, times, strict=True):
                with _about(name, blocks=len(stamps) > few):
                    aligned.append(None)
                    aligned[-1] = align(stamps, candidate)
            return candidate, aligned
        except TitansError as error:
            refused = refused or error
    raise refused or TitansError("no series has two times, from which to find the frequency: give it")


def future_times(times: pd.Index, frequency: str | int, steps: int) -> pd.Index:
    """The next `steps` times of a grid."""
    if isinstance(frequency, int):
        start = int(times[-1]) + frequency
        return pd.RangeIndex(start, start + steps * frequency, frequency, name=times.name)
    last = to_naive(times, frequency)[-1]
    index = pd.date_range(last, periods=steps + 1, freq=offset_of(frequency), name=times.name, unit=times.unit)[1:]
    return from_naive(pd.DatetimeIndex(index, freq=None), frequency, times.tz)


def season_length(frequency: str | int) -> int:
    """Say how many steps come round again, as far as the step of time tells.

    These are a day of hours or of minutes, an hour of seconds, a week of days, a year of weeks, half months, months or
    quarters; 1 for years, for whole-number time, and where nothing is usual.
    """
    if isinstance(frequency, int):
        return 1
    offset = offset_of(frequency)
    if months := offset.kwds.get("months"):  # on another day than the first
        return max(12 // int(months), 1)
    number, code = int(offset.n), offset.rule_code
    if isinstance(offset, pd.offsets.Day):
        return 7 if number == 1 else max(365 // number, 1) if number >= 7 else 1
    if isinstance(offset, pd.offsets.Tick):
        length = pd.Timedelta(offset)
        return max(round(float(pd.Timedelta("1D" if length >= pd.Timedelta("1min") else "1h") / length)), 1)
    if code == "B":
        return 5 if number == 1 else 1
    steps: int = _A_YEAR.get(code.removeprefix("B")[:1], 1)
    return max(steps // number, 1)


def _likely(ids: list[object], times: list[pd.Index], few: int) -> list[str | int]:
    """The frequencies of the longest series, that of most rows first."""
    votes: dict[str | int, int] = {}
    longest = sorted(range(len(ids)), key=lambda number: -len(times[number]))[:_VOTERS]
    for number in longest:
        if len(times[number].unique()) > 1:
            with _about(ids[number], blocks=len(times[number]) > few):
                found = infer_frequency(times[number])
                votes[found] = votes.get(found, 0) + len(times[number])
    return sorted(votes, key=lambda frequency: -votes[frequency])


@contextlib.contextmanager
def _about(name: object, *, blocks: bool) -> Iterator[None]:
    """Begin what is refused with the name of the series; pass over it where that blocks no others."""
    try:
        yield
    except TitansError as error:
        if not blocks:
            return
        raise TitansError(f'series "{name}": {error}') from error


def _candidates(stamps: pd.Index) -> Iterator[str | int]:
    """Steps to try, the best first."""
    if not isinstance(stamps, pd.DatetimeIndex):
        distances = np.diff(as_integers(stamps))
        numbers = (_mode(distances), round(_refined(distances)), np.gcd.reduce(distances))
        yield from dict.fromkeys(int(number) for number in numbers)
        return
    naive, utc = wall_time(stamps), stamps if stamps.tz is None else stamps.tz_convert(None)
    days = is_daily(naive, utc)  # if not, a day is 24 hours
    naive = naive if days else utc
    if days:
        yield from _calendar_candidates(at_one_time(naive))
    distances = np.diff(naive.asi8)
    mode, refined = _mode(distances), _refined(distances)
    if (distances % mode).any():
        yield from _report_months(naive)
    steps = [*_nice(refined, ticks("1s", stamps)), int(np.gcd.reduce(distances))]
    _, counts = np.unique(naive.asi8 % mode, return_counts=True)
    usual = counts.max() >= MOSTLY * len(naive)  # or it may be what jitter made of a whole step
    for length in dict.fromkeys([mode, *steps] if usual else [*steps[:-1], mode, steps[-1]]):
        yield _alias(length, stamps.unit, days=days or stamps.tz is None)


def _calendar_candidates(naive: pd.DatetimeIndex) -> Iterator[str]:
    """Months, half months and working days, for stamps at one time of day."""
    if len(np.unique(time_of_day(naive))) > 1:
        return
    distances = np.diff(naive.asi8)
    days = np.median(distances) / ticks("1D", naive)
    if days >= _MONTH:
        step = int(np.gcd.reduce(np.diff(_months(naive))))
        for alias in ("MS", "ME", "BMS", "BME"):
            if step and _all_on(alias, naive):
                yield offset_of(f"{step}{alias}").freqstr
        day = _mode(np.asarray(naive.day, dtype=np.int64))
        if step and day > 1 and on_day(naive, day).mean() >= MOSTLY:
            yield pd.DateOffset(months=step, day=day).freqstr
    elif days >= _HALF_MONTH:
        early = np.unique(naive.day[naive.day < 28])  # of the first and another day, or of another and the last
        alias = f"SMS-{early[-1]}" if len(early) == 2 else f"SME-{early[-1]}" if len(early) == 1 else "SMS-15"
        if alias not in ("SMS-1", "SME-28") and _all_on(alias, naive):
            yield alias
    # A weekend without stamps must lie within them, or these may as well be days of one week.
    weekday = np.asarray(naive.day_of_week)
    if days == 1 and len(naive) >= 5 and (weekday < 5).all() and (np.diff(weekday) < 0).any():
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


def _all_on(alias: str, naive: pd.DatetimeIndex) -> bool:
    return all(offset_of(alias).is_on_offset(stamp) for stamp in naive)
