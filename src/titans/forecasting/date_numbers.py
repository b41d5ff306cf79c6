"""Dates that text files write as numbers: 20160701, 201607, weeks, seconds since 1970 and finer, spreadsheets' days."""

from __future__ import annotations

import re

import numpy as np

from titans.errors import TitansError
from titans.forecasting._pandas import pd

_DIGITS = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_EPOCHS = {
    "seconds": ("s", 10**0),
    "milliseconds": ("ms", 10**3),
    "microseconds": ("us", 10**6),
    "nanoseconds": ("ns", 10**9),
}
_FIRST, _LAST = 10**9, 5 * 10**9  # seconds since 1970, from 2001 to 2128
_DAY_ZERO, _DAYS = pd.Timestamp("1899-12-30"), (20_000, 80_000)  # of a spreadsheet, from 1954 to 2119


def dates_from_numbers(column: pd.Series) -> tuple[pd.DatetimeIndex, tuple[str, ...]] | None:
    """Read numbers as dates.

    Args:
        column: numbers without missing ones, of a text file `[n]`. Days of a spreadsheet are looked for where its name
            says that it holds dates.

    Returns:
        The dates `[n]` and notes of how they were read; None where they are no dates.

    Raises:
        TitansError: they are years with weeks, and one is no ISO week.
    """
    values = column.to_numpy()
    whole = bool((values == np.rint(values)).all())
    if whole and (dates := _digits(values.astype(np.int64))) is not None:
        said = () if values.min() > 10**6 else ("the time was read as year and month, as in 201607",)
        return dates, said
    if whole and (weeks := _weeks(values.astype(np.int64))) is not None:
        return weeks, ("the time was read as year and ISO week, as in 201627, each as its Monday",)
    low, high = values.min(), values.max()
    for word, (unit, scale) in _EPOCHS.items():
        if _FIRST * scale <= low and high < _LAST * scale:
            numbers = values if whole else np.rint(values * 1000)  # to the millisecond; only seconds have fractions
            dates = pd.DatetimeIndex(numbers.astype(np.int64).view(f"M8[{unit if whole else 'ms'}]")).as_unit("ns")
            return dates, (f"the time was read as {word} since 1970 (UTC)",)
    if re.search("date|datum", str(column.name), re.IGNORECASE) and _DAYS[0] <= low and high < _DAYS[1]:
        seconds = np.rint(values * 86400).astype(np.int64)
        dates = pd.DatetimeIndex(_DAY_ZERO + seconds.view("m8[s]")).as_unit("ns")
        return dates, (f"the time was read as days of a spreadsheet: {values[0]:g} as {dates[0]}",)
    return None


def _digits(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pd.DatetimeIndex | None:
    """Dates whose digits are those of the number, from 1900 to 2199, all of one form."""
    length = len(str(numbers.max()))
    first, last = 19 * 10 ** (length - 2), 22 * 10 ** (length - 2)
    if length not in _DIGITS or numbers.min() < first or numbers.max() >= last:
        return None
    dates = pd.DatetimeIndex(pd.to_datetime(numbers.astype(str), format=_DIGITS[length], errors="coerce"))
    return None if dates.hasnans else dates


def _weeks(numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pd.DatetimeIndex | None:
    """The Mondays of years with weeks, from 1900 to 2199."""
    week = numbers % 100
    if numbers.min() < 190000 or numbers.max() >= 220000 or week.min() < 1 or not 12 < week.max() <= 53:
        return None
    digits = pd.Series(numbers.astype(str))
    mondays = pd.to_datetime(
        digits.str.replace(r"(....)(..)", r"\1-W\2-1", regex=True), format="%G-W%V-%u", errors="coerce"
    )
    if mondays.isna().any():
        raise TitansError(
            f"the time looks like year and week, but {digits[mondays.isna()].iloc[0]} is no ISO week: write the first "
            "day of each week, as in 2016-07-04"
        )
    return pd.DatetimeIndex(mondays)
