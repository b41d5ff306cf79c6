"""Time stamps from columns of dates, whole numbers or text."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import datetime

import numpy as np
import numpy.typing as npt

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.grid import find_frequency
from titans.forecasting.jitter import MOSTLY

NAMES = ("date", "time", "timestamp", "ds", "datetime")
"""What time columns are usually called."""

_DATES = (  # of text with all of / . , and spaces written as -
    *("%Y-%m-%d", "%m-%d-%Y", "%d-%m-%Y", "%m-%d-%y", "%d-%m-%y"),
    *("%d-%b-%Y", "%d-%B-%Y", "%d-%b-%y", "%b-%d-%Y", "%B-%d-%Y", "%b-%Y", "%B-%Y", "%b-%y", "%m-%Y", "%Y-%b"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
_OFFSET = r"\d:\d\d(?::\d\d(?:\.\d+)?)? ?(?:Z|[+-]\d\d:?\d\d)$"


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


def parse_times(column: pd.Series, *, text_file: bool = False) -> Times | None:
    """Read a column as time.

    Args:
        column: dates, periods, whole numbers, or text.
        text_file: the column comes from a text file, where dates may be written as numbers: as in 20160701, or as
            seconds or milliseconds since 1970. Default false: whole numbers are themselves.

    Returns:
        The time stamps, or None where most of the column is no time.
    """
    known = column.notna().to_numpy()
    given = column[known]
    if given.empty or pd.api.types.is_bool_dtype(given):
        return None
    if isinstance(given.dtype, pd.PeriodDtype):
        return Times(pd.DatetimeIndex(given.dt.to_timestamp()), known)
    if isinstance(given.dtype, pd.DatetimeTZDtype) or pd.api.types.is_datetime64_dtype(given):
        return Times(pd.DatetimeIndex(given), known)
    if pd.api.types.is_numeric_dtype(given):
        return _numbers(given, known, text_file)
    if pd.api.types.infer_dtype(given, skipna=True) in ("datetime", "datetime64", "date"):
        for utc in (False, True):
            with contextlib.suppress(ValueError, TypeError):  # time zones that differ, years out of range
                notes = ("times of different time zones were converted to UTC",) if utc else ()
                return Times(pd.DatetimeIndex(pd.to_datetime(given, utc=utc)), known, notes=notes)
        return None
    texts = given.astype(str).str.strip()
    numbers = pd.to_numeric(texts, errors="coerce")
    if numbers.notna().all():
        return _numbers(numbers, known, text_file)
    return _texts(texts, known) if numbers.isna().mean() >= MOSTLY else None


def find_time_column(frame: pd.DataFrame, wanted: str | None, notes: list[str]) -> tuple[list[str], Times]:
    """Find the time column of a text file.

    Args:
        frame: its cells.
        wanted: the column's name; None looks for a usual name, then for the first column that holds dates, then for
            whole numbers that ascend in the first column.
        notes: what was done is added here.

    Returns:
        The names of the column, two where date and time of day stand apart; and the time stamps.

    Raises:
        TitansError: there is no such column, or it holds no time.
    """
    names = list(frame.columns)
    if wanted is not None:
        name = _named(names, wanted)
        if name is None:
            raise TitansError(f'there is no column "{wanted}": expected one of {_listing(names)}')
        if (times := parse_times(frame[name], text_file=True)) is None:
            raise _no_time(frame[name])
        return [name], times
    date, clock = _named(names, "date"), _named(names, "time")
    if date and clock and (times := _date_and_clock(frame[date], frame[clock])):
        notes.append(f'the time is put together from the columns "{date}" and "{clock}"')
        return [date, clock], times
    usual = [name for name in (_named(names, usual) for usual in NAMES) if name]
    for name in usual:
        if times := parse_times(frame[name], text_file=True):
            return [name], times
    for name in names:
        if not pd.api.types.is_numeric_dtype(frame[name]) and (times := parse_times(frame[name], text_file=True)):
            notes.append(f'the column "{name}" was taken as the time')
            return [name], times
    if (times := parse_times(frame[names[0]], text_file=True)) and times.known.all() and _ascending(times.index):
        notes.append(f'the column "{names[0]}" was taken as the time')
        return [names[0]], times
    if usual:
        raise _no_time(frame[usual[0]])
    raise TitansError(
        f"there is no time column among {_listing(names)}: expected dates, or whole numbers that ascend in the first "
        "column; name the time column"
    )


def _no_time(column: pd.Series) -> TitansError:
    texts = column.dropna().astype(str)
    unreadable = texts[pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=True).isna()]
    example = next(iter([*unreadable.head(1), *texts.head(1)]), "nothing")
    return TitansError(
        f'the column "{column.name}" is no time (it holds "{example}"): expected dates, or whole numbers, in nine of '
        "ten rows; correct it, or name another time column"
    )


def _numbers(given: pd.Series, known: npt.NDArray[np.bool_], text_file: bool) -> Times | None:
    values = given.to_numpy(dtype=np.float64)
    if not np.isfinite(values).all() or (values != np.rint(values)).any() or np.abs(values).max() >= 2.0**53:
        return None
    numbers = values.astype(np.int64)
    low, high = int(numbers.min()), int(numbers.max())
    if text_file and low >= 19000101 and high < 22000000:
        dates = pd.to_datetime(pd.Series(numbers).astype(str), format="%Y%m%d", errors="coerce")
        if dates.notna().all():
            return Times(pd.DatetimeIndex(dates), known)
    for unit, scale, word in (("s", 1, "seconds"), ("ms", 1000, "milliseconds")):
        if text_file and 10**9 * scale <= low and high < 5 * 10**9 * scale:
            dates = pd.DatetimeIndex(numbers.view(f"M8[{unit}]")).as_unit("ns")
            return Times(dates, known, notes=(f"the time was read as {word} since 1970 (UTC)",))
    return Times(pd.Index(numbers), known)


def _texts(texts: pd.Series, known: npt.NDArray[np.bool_]) -> Times | None:
    texts = texts.str.replace(r" ?(?:UTC|GMT)$", "Z", regex=True)
    if texts.str.contains(_OFFSET).any():
        parsed = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=True)
        in_utc = texts.str.contains(r"(?:Z|[+-]00:?00)$").all()
        notes = () if in_utc else ("times with a UTC offset were converted to UTC",)
        return _times(texts, parsed, known, notes)
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
    notes = ()
    if any(not best[other].equals(best[form]) for other in best):
        order = "month/day" if form.startswith("%m") else "day/month"
        notes = (f"dates such as {texts.iloc[0]} were read as {order}; write them as 2016-07-31 to be sure",)
    return _times(texts, best[form], known, notes)


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
    fitting = []
    for form in (date + time for date in _DATES for time in _TIMES):
        for row in rows:
            with contextlib.suppress(ValueError):
                datetime.strptime(row, form)
                fitting.append(form)
                break
    return fitting


def _regular(reading: pd.Series) -> bool:
    try:
        find_frequency(pd.DatetimeIndex(reading.dropna().sort_values()))
    except TitansError:
        return False
    return bool(reading.dropna().is_monotonic_increasing)


def _date_and_clock(date: pd.Series, clock: pd.Series) -> Times | None:
    clock, date = clock.astype(str).str.strip(), date.astype(str).str.strip()
    clock = clock.str.replace(r"^(\d{1,2})[.](\d\d)[.](\d\d)$", r"\1:\2:\3", regex=True)  # as in 18.00.00
    if clock.str.fullmatch(r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?").mean() < MOSTLY or date.str.contains(":").any():
        return None
    return parse_times(date + " " + clock, text_file=True)


def _named(names: list[str], wanted: str) -> str | None:
    exact = [name for name in names if name == wanted]
    return next(iter(exact + [name for name in names if name.strip().lower() == wanted.strip().lower()]), None)


def _ascending(index: pd.Index) -> bool:
    return bool(len(index) > 1 and index.is_monotonic_increasing and index.is_unique)


def _listing(names: list[str]) -> str:
    return ", ".join(map(str, names[:20])) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
