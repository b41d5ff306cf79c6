"""Dates that text files write as numbers: 20160701, 201607, weeks, seconds since 1970 and finer, spreadsheets' days."""

from __future__ import annotations

import re

from titans.errors import TitansError
from titans.forecasting._pandas import pd

_DIGITS = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_SINCE_1970 = {
    "s": ("seconds", 1),
    "ms": ("milliseconds", 10**3),
    "us": ("microseconds", 10**6),
    "ns": ("nanoseconds", 10**9),
}
_FIRST, _LAST = 10**9, 5 * 10**9  # seconds since 1970, from 2001 to 2128
_DAY_ZERO, _FIRST_DAY, _LAST_DAY = "1899-12-30", 20_000, 80_000  # of a spreadsheet, from 1954 to 2119


def dates_from_numbers(column: pd.Series) -> tuple[pd.DatetimeIndex, tuple[str, ...]] | None:
    """Read numbers of a text file `[n]` as dates, with notes of how they were read; None where they are none.

    Days of a spreadsheet are looked for where the name of the column says that it holds dates. Raises TitansError where
    years with weeks hold one that is no ISO week.
    """
    low, high = column.min(), column.max()
    whole = bool((column % 1 == 0).all())
    column = column.astype("int64") if whole else column
    if whole and (found := _from_digits(column.astype(str))):
        return found
    for unit, (word, scale) in _SINCE_1970.items():
        if _FIRST * scale <= low and high < _LAST * scale:
            dates = pd.DatetimeIndex(pd.to_datetime(column, unit=unit)).as_unit("ns")
            return dates if whole else dates.round("ms"), (f"the time was read as {word} since 1970 (UTC)",)
    if re.search("date|datum", str(column.name), re.IGNORECASE) and low >= _FIRST_DAY and high < _LAST_DAY:
        dates = pd.DatetimeIndex(pd.to_datetime(column, unit="D", origin=_DAY_ZERO)).as_unit("ns").round("s")
        return dates, (f"the time was read as days of a spreadsheet: {column.iloc[0]:g} as {dates[0]}",)
    return None


def _from_digits(digits: pd.Series) -> tuple[pd.DatetimeIndex, tuple[str, ...]] | None:
    """Dates, months or weeks from 1900 to 2199, all of one form."""
    length = len(digits.iloc[0])
    if length not in _DIGITS or not digits.str.fullmatch(rf"(?:19|2[01])\d{{{length - 2}}}").all():
        return None
    dates = pd.to_datetime(digits, format=_DIGITS[length], errors="coerce")
    if dates.notna().all():
        return pd.DatetimeIndex(dates), ("the time was read as year and month, as in 201607",) if length == 6 else ()
    week = digits.str[4:].astype(int)
    if length > 6 or week.min() < 1 or not 12 < week.max() <= 53:
        return None
    mondays = pd.to_datetime(digits + "1", format="%G%V%u", errors="coerce")
    if mondays.isna().any():
        raise TitansError(
            f"the time looks like year and week, but {digits[mondays.isna()].iloc[0]} is no ISO week: write the first "
            "day of each week, as in 2016-07-04"
        )
    return pd.DatetimeIndex(mondays), ("the time was read as year and ISO week, as in 201627, each as its Monday",)
