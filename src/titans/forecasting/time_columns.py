"""The columns of a text file that say when: one, or several that do so together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.numbers import MOSTLY
from titans.forecasting.sentences import listed
from titans.forecasting.times import FORMS, Times, parse_times

_USUAL = ("date", "time", "timestamp", "ds", "datetime", "datum", "zeit", "zeitstempel")
_YEAR = ("year", "jahr", "yr", "yyyy")
_DAY, _HOUR = ("day", "tag", "dd"), ("hour", "hours", "hr", "stunde", "hh")
_WITHIN: tuple[tuple[tuple[str, ...], Callable[[pd.Series], pd.Series]], ...] = (  # a year; after its number
    (("month", "monat", "mon", "mm", "mnth"), lambda cells: "-" + cells.str.zfill(2)),
    (("quarter", "quartal", "qtr", "q"), lambda cells: " Q" + cells.str.removeprefix("Q")),
    (("week", "woche", "kw", "isoweek"), lambda cells: "-W" + cells.str.removeprefix("W").str.zfill(2)),
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?"


def find_time_columns(frame: pd.DataFrame, wanted: str | None, notes: list[str]) -> tuple[list[str], Times]:
    """Find the columns of a text file that hold the time, and read them.

    These are the one that is wanted; or one with a usual name, a year with months, quarters or weeks beside it, the
    first that holds dates, or whole numbers that ascend in the first column. There are several where date and time of
    day, or year and month, stand apart.

    Raises:
        TitansError: there is no such column, or it holds no time.
    """
    names = list(frame.columns)
    usual = [name for one in (_USUAL if wanted is None else [wanted]) if (name := _named(names, [one]))]
    if wanted is not None and not usual:
        raise TitansError(f'there is no column "{wanted}": expected one of {listed(names)}')
    for name in usual:
        if times := parse_times(frame[name], text_file=True):
            return _with_clock(frame, name, times, notes)
    if wanted is None:
        if found := _parts_of_years(frame, notes):
            return found
        texts = [name for name in names if pd.to_numeric(frame[name].dropna(), errors="coerce").isna().any()]
        for name in [*texts, names[0]]:
            times = parse_times(frame[name], text_file=True)
            if times and (name in texts or (times.known.all() and _ascending(times.index))):
                notes.append(f'the column "{name}" was taken as the time')
                return _with_clock(frame, name, times, notes)
    if usual:
        raise _no_time(frame[usual[0]])
    raise TitansError(
        f"there is no time column among {listed(names)}: expected {FORMS} that ascend in the first column; correct "
        "them, or name the time column"
    )


def stack_months(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Put months that are columns beside a year below each other; other cells stay as they are."""
    year = _named(list(frame.columns), _YEAR)
    months = [name for name in frame if name[:3].lower() in _MONTHS and name != year]
    if year is None or [name[:3].lower() for name in months] != _MONTHS or len(frame.columns) != 13:
        return frame
    notes.append(f'the columns {months[0]} to {months[-1]} were read as the months of each "{year}"')
    below = frame.rename(columns=dict(zip(months, range(1, 13), strict=True)))
    return (
        below.melt(year, var_name="month", value_name="value").dropna().sort_values([year, "month"], ignore_index=True)
    )


def _with_clock(frame: pd.DataFrame, name: str, times: Times, notes: list[str]) -> tuple[list[str], Times]:
    """Put days together with the times of day in another column, if the days repeat and there is one."""
    date = frame[name].copy()
    if not isinstance(times.index, pd.DatetimeIndex) or times.index.is_unique or date.str.contains(":").any():
        return [name], times
    for other in frame.columns.drop(name):
        cells = frame[other].str.replace(r"^(\d{1,2})[.](\d\d)[.](\d\d)$", r"\1:\2:\3", regex=True)  # as in 18.00.00
        if _named([other], _HOUR):
            cells = _on_the_hour(cells, notes)
        if cells.str.fullmatch(_CLOCK).mean() >= MOSTLY:
            midnight = cells.str.match("24:00")  # the end of the day
            date[times.known] = times.index.strftime("%Y-%m-%d")
            joined = parse_times(date + " " + cells.mask(midnight, "00:00"), text_file=True)
            if joined is not None:
                notes.append(f'the time is put together from the columns "{name}" and "{other}"')
                later = pd.to_timedelta(midnight[joined.known].to_numpy().astype(int), unit="D")
                return [name, other], Times(joined.index + later, joined.known, joined.unreadable, joined.notes)
    return [name], times


def _parts_of_years(frame: pd.DataFrame, notes: list[str]) -> tuple[list[str], Times] | None:
    """Years with months, quarters or weeks beside them, and perhaps days and hours."""
    names = list(frame.columns)
    if not (year := _named(names, _YEAR)):
        return None
    frame = frame.apply(lambda column: column.astype(str).str.removesuffix(".0"))
    for usual, write in _WITHIN:
        if name := _named(names, usual):
            used = [year, name]
            written = frame[year] + write(frame[name])
            if usual is _WITHIN[0][0] and (day := _named(names, _DAY)):
                used.append(day)
                written += "-" + frame[day].str.zfill(2)
                if hour := _named(names, _HOUR):
                    used.append(hour)
                    written += " " + _on_the_hour(frame[hour], notes)
            if times := parse_times(written.rename(year), text_file=True):
                listing = '", "'.join(used)
                notes.append(f'the time is put together from the columns "{listing}"')
                return used, times
    return None


def _on_the_hour(cells: pd.Series, notes: list[str]) -> pd.Series:
    """Times of day from hours, 0 to 23, or 1 to 24 where each is named after its end."""
    hours = pd.to_numeric(cells, errors="coerce")
    if (hours == 24).any() and (hours >= 1).all():
        notes.append("hours from 1 to 24 were read as those that end then")
        hours = hours - 1
    return hours.map("{:02.0f}:00".format)


def _no_time(column: pd.Series) -> TitansError:
    unreadable = column[pd.to_datetime(column, format="ISO8601", errors="coerce", utc=True).isna()].dropna()
    example = next(iter([*unreadable.head(1), *column.dropna().head(1)]), "nothing")
    return TitansError(
        f'the column "{column.name}" is no time (it holds "{example}"): expected {FORMS}, in nine of ten rows; '
        "correct it, or name another time column"
    )


def _named(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    """The first name that is wanted, letter for letter or else in any case."""
    exact = [name for name in names if name in wanted]
    lower = [one.strip().lower() for one in wanted]
    return next(iter(exact + [name for name in names if name.strip().lower() in lower]), None)


def _ascending(index: pd.Index) -> bool:
    return bool(len(index) > 1 and index.is_monotonic_increasing and index.is_unique)
