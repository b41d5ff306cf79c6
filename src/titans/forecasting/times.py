"""Time stamps from columns of dates, whole numbers or text."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from datetime import timezone

import numpy as np
import numpy.typing as npt

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.frequency import infer_frequency
from titans.forecasting.numbers import MOSTLY
from titans.forecasting.time_zones import is_daily, zone_of

_DATES = (  # of text with all of / . , and spaces written as -
    *("%Y-%m-%d", "%m-%d-%Y", "%d-%m-%Y", "%m-%d-%y", "%d-%m-%y"),
    *("%d-%b-%Y", "%d-%B-%Y", "%d-%b-%y", "%b-%d-%Y", "%B-%d-%Y"),
    *("%b-%Y", "%B-%Y", "%b-%y", "%m-%Y", "%Y-%m", "%Y-%b", "%Y-%B"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
_CLOCK = r"\d:\d\d(?::\d\d(?:\.\d+)?)?"
_OFFSET = r" ?(?:Z|[+-]\d\d(?::?\d\d)?)$"
_RANGE = r"^(.*\d:\d\d.*?) [-–] .*\d:\d\d.*$"  # of which the beginning counts
_WEEKDAY = r"(?i)^(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,? +"
_PERIOD = r"^(\d{4})[\s:/.-]{0,3}([MQHS])[\s-]?(\d\d?)$"
_TURNED_PERIOD = r"^(?:([QHS])\s?([1-4])|([1-4])(Q))[\s,/.-]{0,2}(\d{4})$"
_WEEK = r"^(\d{4})[\s/-]?(?:W|KW|CW)[\s-]?(\d\d?)(?:-?([1-7]))?$"
_TURNED_WEEK = r"^(?:W|KW|CW)\s?(\d\d?)[\s,/.-]{1,2}(\d{4})$"
_DIGITS = {6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_SINCE_1970 = {
    "s": ("seconds", 1),
    "ms": ("milliseconds", 10**3),
    "us": ("microseconds", 10**6),
    "ns": ("nanoseconds", 10**9),
}
_FIRST, _LAST = 10**9, 5 * 10**9  # seconds since 1970, from 2001 to 2128
_DAY_ZERO, _FIRST_DAY, _LAST_DAY = "1899-12-30", 20_000, 80_000  # of a spreadsheet, from 1954 to 2119

FORMS = "dates such as 2016-07-31 or 2016-07-31 18:00, 2010 Q1, 2023-W01, or whole numbers"
"""What times may look like, for what is refused."""


@dataclasses.dataclass(frozen=True)
class Times:
    """A column of time.

    Args:
        index: the time stamps of the rows that have one: a DatetimeIndex, or whole numbers.
        known: which rows have one `[n]`.
        unreadable: what the first row holds that has no time stamp but something else; None where there is no such row.
        notes: what was done to the data.
    """

    index: pd.Index
    known: npt.NDArray[np.bool_]
    unreadable: str | None = None
    notes: tuple[str, ...] = ()


def parse_times(column: pd.Series, *, text_file: bool = False, like: pd.Index | None = None) -> Times | None:
    """Read a column of dates, periods, whole numbers or text as time; None where most of it is no time.

    Args:
        column: the column.
        text_file: dates may be written as numbers, see `_dates_from_numbers`; else whole numbers are themselves.
        like: times read before, which these go on with. Default: none.
    """
    known = column.notna().to_numpy()
    given = column[known]
    if given.empty or pd.api.types.is_bool_dtype(given):
        return None
    if isinstance(given.dtype, pd.PeriodDtype):
        given = given.dt.to_timestamp()
    if pd.api.types.is_datetime64_any_dtype(given):
        return Times(pd.DatetimeIndex(given), known)
    if pd.api.types.is_numeric_dtype(given):
        return _numbers(given, known, text_file)
    if pd.api.types.infer_dtype(given, skipna=True) in ("datetime", "datetime64", "date"):
        with contextlib.suppress(ValueError, TypeError):  # UTC offsets that differ, years out of range
            return Times(pd.DatetimeIndex(pd.to_datetime(given)), known)
    texts = given.astype(str).str.strip()
    numbers = pd.to_numeric(texts, errors="coerce")
    if numbers.notna().all():
        return _numbers(numbers, known, text_file)
    return _texts(texts, known, like) if numbers.isna().mean() >= MOSTLY else None


def _numbers(given: pd.Series, known: npt.NDArray[np.bool_], text_file: bool) -> Times | None:
    if text_file and (found := _dates_from_numbers(given)):
        return Times(found[0], known, notes=found[1])
    values = given.to_numpy(dtype=np.float64)
    if not np.isfinite(values).all() or (values != np.rint(values)).any() or np.abs(values).max() >= 2.0**53:
        return None
    return Times(pd.Index(values.astype(np.int64)), known)


def _dates_from_numbers(column: pd.Series) -> tuple[pd.DatetimeIndex, tuple[str, ...]] | None:
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


def _texts(texts: pd.Series, known: npt.NDArray[np.bool_], like: pd.Index | None = None) -> Times | None:
    texts = texts.str.replace(r" ?(?:UTC|GMT)$", "Z", regex=True)
    texts = texts.str.replace(_WEEKDAY, "", regex=True)
    if (ranges := texts.str.extract(_RANGE)[0]).notna().mean() >= MOSTLY:
        texts = ranges.fillna(texts)
    if texts.str.contains(_CLOCK + _OFFSET).any():
        return _offsets(texts, known, like)
    if texts.str.contains(r"[QHSMW]", case=False).mean() >= MOSTLY:
        texts = _first_days(texts)
    parsed = pd.to_datetime(texts, format="ISO8601", errors="coerce")
    if parsed.notna().mean() >= MOSTLY:
        return _times(texts, parsed, known)
    parts = texts.str.extract(r"^(.*?)(?:[T ]+(\d{1,2}:.*))?$")
    written = parts[0].str.replace(r"[/., ]+", "-", regex=True) + (" " + parts[1]).fillna("")
    readings = {form: pd.to_datetime(written, format=form, errors="coerce") for form in _formats(written)}
    if not readings:
        return None
    most = max(reading.notna().sum() for reading in readings.values())
    best = {form: reading for form, reading in readings.items() if reading.notna().sum() == most}
    forms = sorted(best, key=lambda form: form.startswith("%m") and texts.str.contains(r"^\d+\.\d").all())  # 31.7.2016
    form = next((form for form in forms if len(forms) > 1 and _regular(best[form])), forms[0])
    notes: tuple[str, ...] = ()
    if any(not best[other].equals(best[form]) for other in best):
        order = "month/day" if form.startswith("%m") else "day/month"
        notes = (f"dates such as {texts.iloc[0]} were read as {order}; write them as 2016-07-31 to be sure",)
    return _times(texts, best[form], known, notes)


def _offsets(texts: pd.Series, known: npt.NDArray[np.bool_], like: pd.Index | None) -> Times | None:
    """Times with UTC offsets: as days and months they are the written ones, as hours those of the offset or of UTC."""
    instants = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=True)
    wall = pd.to_datetime(
        texts.str.replace(f"({_CLOCK}){_OFFSET}", r"\1", regex=True), format="ISO8601", errors="coerce"
    )
    if like is not None:  # what goes on with times read before is read as they were
        return _times(texts, wall if zone_of(like) is None else instants, known)
    if texts.str.contains(r"(?:Z|[+-]00(?::?00)?)$").all():
        return _times(texts, instants, known)
    utc = instants.dt.tz_localize(None)
    if is_daily(pd.DatetimeIndex(wall.dropna()), pd.DatetimeIndex(utc.dropna())):
        return _times(texts, wall, known, ("UTC offsets were left out: the days are those that are written",))
    offsets = (wall - utc).dropna().unique()
    if len(offsets) == 1:
        return _times(texts, instants.dt.tz_convert(timezone(offsets[0].to_pytimedelta())), known)
    return _times(texts, instants, known, ("times of different UTC offsets were converted to UTC",))


def _first_days(texts: pd.Series) -> pd.Series:
    """The first days of quarters and the like (2010 Q1, 1Q2010, 2010M01, H2/2010) and of ISO weeks (2023-W01)."""
    turned = texts.str.upper().str.replace(_TURNED_PERIOD, r"\5 \1\4\2\3", regex=True)
    turned = turned.str.replace(_TURNED_WEEK, r"\2-W\1", regex=True)
    year, kind, number = (part for _, part in turned.str.extract(_PERIOD).items())
    month = (pd.to_numeric(number) - 1) * kind.map({"M": 1, "Q": 3, "H": 6, "S": 6}) + 1
    months = year + "-" + month.map("{:02.0f}".format) + "-01"
    year, week, day = (part for _, part in turned.str.extract(_WEEK).items())
    days = pd.to_datetime(year + week.str.zfill(2) + day.fillna("1"), format="%G%V%u", errors="coerce")
    return days.dt.strftime("%Y-%m-%d").fillna(months).fillna(texts)


def _times(
    texts: pd.Series, parsed: pd.Series, known: npt.NDArray[np.bool_], notes: tuple[str, ...] = ()
) -> Times | None:
    read = parsed.notna().to_numpy()
    if read.mean() < MOSTLY:
        return None
    both = known.copy()
    both[known] = read
    unreadable = None if read.all() else str(texts[~read].iloc[0])
    return Times(pd.DatetimeIndex(parsed[read]), both, unreadable, notes)


def _formats(written: pd.Series) -> list[str]:
    """The formats that fit one of a few rows."""
    rows = written.iloc[np.linspace(0, len(written) - 1, min(len(written), 20)).astype(int)]
    forms = [date + time for date in _DATES for time in _TIMES]
    return [form for form in forms if pd.to_datetime(rows, format=form, errors="coerce").notna().any()]


def _regular(reading: pd.Series) -> bool:
    try:
        infer_frequency(pd.DatetimeIndex(reading.dropna().sort_values()))
    except TitansError:
        return False
    return bool(reading.dropna().is_monotonic_increasing)
