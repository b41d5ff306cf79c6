"""Long frames of time series, `unique_id, ds, y`: checked, and laid on a regular grid series by series."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.alignment import Alignment, check_frequency
from titans.forecasting.frequency import align_all
from titans.forecasting.numbers import Floats, to_numbers, without_infinite
from titans.forecasting.sentences import counted, listed, note_names, was_were
from titans.forecasting.time_zones import Integers
from titans.forecasting.times import FORMS, Times, parse_times

ID, TIME, TARGET = "unique_id", "ds", "y"


@dataclasses.dataclass(frozen=True)
class Series:
    """One time series on equally spaced times.

    Args:
        unique_id: its name, as in the frame.
        times: `[T]`, a DatetimeIndex, or a RangeIndex where time is whole numbers.
        y: the numbers `[T]`, float64, NaN where none was observed.
        covariates: the other columns of numbers `[T, F]`, float64, NaN where none was given.
    """

    unique_id: object
    times: pd.Index
    y: Floats
    covariates: Floats


@dataclasses.dataclass(frozen=True)
class Panel:
    """The series of a long frame.

    Args:
        series: in the order in which the frame first names them.
        frequency: the step of all, as a pandas offset alias or a whole number.
        covariates: the names of the other columns of numbers `[F]`.
        notes: what was done to the data, one sentence each; empty for clean data.
    """

    series: list[Series]
    frequency: str | int
    covariates: list[str]
    notes: list[str]

    def to_frame(self, start: int | None, stop: int | None) -> pd.DataFrame:
        """Write the same steps of each series as a long frame."""
        part = slice(start, stop)
        return pd.concat(
            [
                pd.DataFrame(one.covariates[part], columns=self.covariates).assign(
                    **{ID: one.unique_id, TIME: one.times[part], TARGET: one.y[part]}
                )
                for one in self.series
            ],
            ignore_index=True,
        )


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a long frame that have a time.

    Args:
        ids: the names of the series `[S]`.
        codes: the series of each row `[n]`.
        times: the time of each row `[n]`.
        values: y and the covariates `[n, 1 + F]`, finite or NaN.
        covariates: the names of the covariates `[F]`.
    """

    ids: list[object]
    codes: Integers
    times: pd.Index
    values: Floats
    covariates: list[str]


def regular(frame: pd.DataFrame, frequency: str | int | None = None) -> Panel:
    """Lay each series of a long frame on a regular grid; what is missing is NaN.

    Rows may come in any order. Rows of a series with one time are averaged; times near the grid are moved to it;
    infinite numbers count as missing; covariates that are no numbers, and series without a number, are left out.
    All that is done is said in the panel's notes.

    Args:
        frame: the columns unique_id, ds (dates with or without a time zone, periods, whole numbers, or text) and y; any
            others are covariates.
        frequency: the step of time, as a pandas offset alias or a whole number. Default: found in the times.

    Returns:
        The series.

    Raises:
        TitansError: a column is missing or unreadable, or times follow no regular step.
    """
    if frequency is not None:
        check_frequency(frequency)
    notes: list[str] = []
    rows = read_rows(frame, notes)
    members = rows_by_series(rows.times, rows.codes, notes)
    frequency, aligned = align_all(rows.ids, [rows.times[member] for member in members], frequency)
    kept = [(name, rows_, one) for name, rows_, one in zip(rows.ids, members, aligned, strict=True) if one is not None]
    off = [name for name, one in zip(rows.ids, aligned, strict=True) if one is None]
    note_names(notes, off, "series", "of a few rows, off the others' steps, left out")
    note_alignments([one for _, _, one in kept], frequency, notes)
    values = [mean_per_step(rows.values[rows_], one.place, len(one.times)) for _, rows_, one in kept]
    series = [Series(name, one.times, v[:, 0], v[:, 1:]) for (name, _, one), v in zip(kept, values, strict=True)]
    empty = [one.unique_id for one in series if np.isnan(one.y).all()]
    if len(empty) == len(series):
        raise TitansError('the column "y" holds no number: expected at least one')
    note_names(notes, empty, "series", "without a number left out")
    series = [one for one in series if not np.isnan(one.y).all()]
    note_values([(one.unique_id, one.y) for one in series], "series", notes)
    return Panel(series, frequency, rows.covariates, notes)


def without_short(panel: Panel, enough: Sequence[bool], why: str) -> Panel:
    """Leave out series of which `enough` is false, unless it is of all, and say `why`."""
    if all(enough) or not any(enough):
        return panel
    short = [one.unique_id for one, long in zip(panel.series, enough, strict=True) if not long]
    notes = list(panel.notes)
    note_names(notes, short, "series", f"{why} left out")
    series = [one for one, long in zip(panel.series, enough, strict=True) if long]
    return dataclasses.replace(panel, series=series, notes=notes)


def read_rows(frame: pd.DataFrame, notes: list[str], *, text_file: bool = False, like: pd.Index | None = None) -> Rows:
    """Check a long frame and read its columns; raises TitansError where one is missing or unreadable.

    A few unreadable times of a text file are left out. `like` are times read before, which these go on with: see
    `parse_times`.
    """
    _check_columns(frame)
    times = parse_times(frame[TIME], text_file=text_file, like=like)
    if times is None or (times.unreadable is not None and not text_file):
        example = times.unreadable if times else next(iter(frame[TIME].dropna().astype(str)), "nothing")
        raise TitansError(f'the column "ds" holds {example!r}, which is no time: expected {FORMS}')
    notes += time_notes(times)
    frame = frame.loc[times.known]
    columns = {str(name): to_numbers(frame[name]) for name in frame.columns.drop([ID, TIME])}
    y = columns.pop(TARGET)
    if y is None or np.isnan(y[frame[TARGET].notna()]).any():
        raise no_numbers(frame[TARGET])
    texts = [name for name, numbers in columns.items() if numbers is None]
    note_names(notes, texts, "column", "without numbers left out")
    numbers = {TARGET: y, **{name: column for name, column in columns.items() if column is not None}}
    values = without_infinite(np.stack(list(numbers.values()), 1), list(numbers), notes)
    codes, ids = pd.factorize(frame[ID])
    return Rows(list(ids), codes.astype(np.int64), times.index, values, list(numbers)[1:])


def time_notes(times: Times) -> list[str]:
    """Say how times were read, and how many rows have none."""
    dropped = int((~times.known).sum())
    if not dropped:
        return list(times.notes)
    such = "" if times.unreadable is None else f' (such as "{times.unreadable}")'
    return [*times.notes, f"{counted(dropped, 'row')} without a time{such} {was_were(dropped)} left out"]


def rows_by_series(times: pd.Index, codes: Integers, notes: list[str]) -> list[Integers]:
    """Put the rows of each series in order of time; note where they were not, or where a time repeats."""
    clock = times.asi8 if isinstance(times, pd.DatetimeIndex) else times.to_numpy()
    order = np.lexsort((clock, codes))
    if (np.argsort(codes, kind="stable") != order).any():
        notes.append("rows were not in order of time and were sorted")
    repeated = (np.diff(clock[order]) == 0) & (np.diff(codes[order]) == 0)
    if number := int(repeated.sum()):
        first = times[order[int(repeated.argmax())]]
        notes.append(
            f"{counted(number, 'row')} with the same time as another {was_were(number)} averaged with it "
            f"(first at {first})"
        )
    return list(np.split(order.astype(np.int64), np.cumsum(np.bincount(codes))[:-1]))


def mean_per_step(values: Floats, place: Integers, steps: int) -> Floats:
    """The mean `[steps, C]` of the rows `[n, C]` at each step, given the step of each row; NaN where there is none."""
    if len(place) == len(np.unique(place)):
        result = np.full((steps, values.shape[1]), np.nan)
        result[place] = values
        return result
    return np.array(pd.DataFrame(values).groupby(place).mean().reindex(range(steps)), dtype=np.float64)


def note_alignments(aligned: Sequence[Alignment], frequency: str | int, notes: list[str]) -> None:
    """Note which times were moved, and which steps have no row."""
    note_moved(aligned, frequency, notes)
    absent = [np.setdiff1d(np.arange(len(one.times)), one.place) for one in aligned]
    if number := sum(map(len, absent)):
        first = next(one.times[steps[0]] for one, steps in zip(aligned, absent, strict=True) if len(steps))
        steps = sum(len(one.times) for one in aligned)
        notes.append(f"{number:,} of {steps:,} steps of time had no row (first {first})")


def note_moved(aligned: Sequence[Alignment], frequency: str | int, notes: list[str]) -> None:
    """Note which times were moved."""
    if moved := sum(one.moved for one in aligned):
        notes.append(
            f"{counted(moved, 'time')} {was_were(moved)} moved to the nearest of equally spaced times (frequency "
            f"{frequency})"
        )


def note_values(values: Sequence[tuple[object, Floats]], kind: str, notes: list[str]) -> None:
    """Say how many values are missing in series or columns, given by name and numbers, and which are constant."""
    missing = {name: int(np.isnan(y).sum()) for name, y in values}
    if number := sum(missing.values()):
        named = listed([f"{name}: {count:,}" for name, count in missing.items() if count])
        notes.append(f"{number:,} of {sum(len(y) for _, y in values):,} values are missing ({named})")
    note_names(notes, [name for name, y in values if np.nanmin(y) == np.nanmax(y)], kind, "of one constant value")


def _check_columns(frame: pd.DataFrame) -> None:
    expected = "unique_id (name of the series), ds (time) and y (number), and perhaps others"
    if not isinstance(frame, pd.DataFrame):
        raise TitansError(f"expected a pandas DataFrame with the columns {expected}, not {type(frame).__name__}")
    if missing := [name for name in (ID, TIME, TARGET) if name not in frame.columns]:
        found = listed(list(frame.columns)) or "none"
        raise TitansError(
            f"the frame has no column {' and no column '.join(missing)} (columns: {found}): expected {expected}"
        )
    if not frame.columns.is_unique:
        raise TitansError(
            f"two columns of the frame are called {frame.columns[frame.columns.duplicated()][0]!r}: rename one"
        )
    if frame.empty:
        raise TitansError("the frame has no rows: expected one for each series and time")
    if unnamed := int(frame[ID].isna().sum()):
        raise TitansError(f"unique_id is missing in {counted(unnamed, 'row')}: name the series in every row")


def no_numbers(column: pd.Series) -> TitansError:
    """Refuse a column y."""
    text = column.dropna().astype(str)
    unreadable = text[pd.to_numeric(text, errors="coerce").isna()]
    found = repr(unreadable.iloc[0]) if len(unreadable) else f"values of type {column.dtype}"
    return TitansError(f'the column "y" holds {found}: expected numbers, and NaN where one is missing')
