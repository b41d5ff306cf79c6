"""Wide tables of time series: one column per series, one row per step of time, from CSV files and long frames."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.alignment import align
from titans.forecasting.csv_files import read_cells
from titans.forecasting.frequency import align_all, infer_frequency
from titans.forecasting.id_columns import long_from_shared_times
from titans.forecasting.long_frames import (
    ID,
    TARGET,
    TIME,
    Panel,
    Rows,
    Series,
    mean_per_step,
    no_numbers,
    note_alignments,
    note_moved,
    note_values,
    read_rows,
    regular,
    rows_by_series,
    time_notes,
)
from titans.forecasting.numbers import Floats, parse_numbers, without_infinite
from titans.forecasting.sentences import counted, is_are, note_names
from titans.forecasting.time_columns import find_time_columns, stack_months
from titans.forecasting.time_zones import Integers

__all__ = ["MINIMUM_STEPS", "Panel", "Series", "Table", "from_long", "read_csv", "regular", "to_long"]

MINIMUM_STEPS = 3
"""Steps of time that a table has at least; a model needs many more."""
_ROW_NUMBERS = ["unnamed: 0", "index", "row", "rownum", "row_number", "rownames", "nr", "no", "#", "id", "obs"]


@dataclasses.dataclass(frozen=True)
class Table:
    """Time series side by side, on equally spaced times.

    Args:
        frame: float64 numbers `[T, C]`, NaN where one is missing, indexed by time: a DatetimeIndex, or a RangeIndex
            where time is whole numbers.
        frequency: the step of time, as a pandas offset alias or a whole number.
        notes: what was done to the data, one sentence each; empty for clean data.
    """

    frame: pd.DataFrame
    frequency: str | int
    notes: list[str]


def read_csv(path: str | os.PathLike[str], time_column: str | None = None) -> Table:
    """Read a CSV file, compressed or not, whose rows are times and whose columns are series.

    A file with the columns unique_id, ds and y is read as a long frame, and so is one whose times have several rows
    that one column tells apart. What is cleaned is said in the table's notes: rows out of order or without a time,
    repeated times (averaged), times near a regular grid (moved to it), missing rows and values (NaN), infinite values
    (treated as missing), columns without numbers (left out), constant columns (kept), commas within numbers, and
    encodings other than UTF-8.

    Args:
        path: the file.
        time_column: its column of time. Default: found; see `find_time_columns`.

    Returns:
        The table.

    Raises:
        TitansError: the file cannot be read, has no time or no numbers, or its times follow no regular step.
    """
    path, notes = Path(path), list[str]()
    with _about(path):
        cells, separator = read_cells(path, notes)
        names = {name: name.lower() for name in cells if name.lower() in (ID, TIME, TARGET)}
        if (time_column or TIME).lower() == TIME and sorted(names.values()) == sorted([ID, TIME, TARGET]):
            cells = cells.rename(columns=names)
            numbers = parse_numbers(cells.drop(columns=[ID, TIME]), separator, notes)
            if TARGET not in numbers:
                raise no_numbers(cells[TARGET])
            cells[numbers.columns] = numbers
            return _from_rows(read_rows(cells, notes, text_file=True), notes)
        cells = stack_months(cells, notes)
        time_names, times = find_time_columns(cells, time_column, notes)
        cells = cells.drop(columns=time_names)
        numbers = parse_numbers(cells, separator, notes)
        if (long := long_from_shared_times(cells, numbers, times, notes)) is not None:
            notes += time_notes(times)
            return _from_rows(read_rows(long, notes), notes)
        hint = _note_texts(cells.drop(columns=numbers.columns), notes)
        for name in [name for name in numbers if name.lower() in _ROW_NUMBERS]:
            if numbers[name].iloc[0] in (0, 1) and (numbers[name].diff()[1:] == 1).all():
                notes.append(f'the column "{name}" numbers the rows and was left out')
                numbers = numbers.drop(columns=name)
        if numbers.empty:
            raise TitansError(f'there is no column of numbers beside the time "{time_names[0]}": expected at least one')
        notes += time_notes(times)
        with _about(hint, after=True):
            return _table(times.index, numbers.to_numpy()[times.known], list(numbers), notes)


def to_long(table: Table) -> pd.DataFrame:
    """Write a table as a long frame.

    Args:
        table: the table.

    Returns:
        The columns unique_id (the names of the series), ds (time) and y (the numbers, NaN where missing), series
        by series.
    """
    return table.frame.rename_axis(index=TIME, columns=ID).unstack().rename(TARGET).reset_index()


def from_long(frame: pd.DataFrame) -> Table:
    """Put the series of a long frame side by side, on one grid of time.

    Args:
        frame: the columns unique_id, ds (dates, whole numbers or text) and y. Others are left out.

    Returns:
        The table, cleaned as `read_csv` does. Where a series begins later or ends earlier than another, it is NaN.

    Raises:
        TitansError: a column is missing or unreadable, or the times of all series follow no common step.
    """
    notes: list[str] = []
    return _from_rows(read_rows(frame, notes), notes)


@contextlib.contextmanager
def _about(what: object, *, after: bool = False) -> Iterator[None]:
    """Begin what is refused with the name of the file, or end it with a hint if there is one."""
    try:
        yield
    except TitansError as error:
        if after and not what:
            raise
        raise TitansError(f"{error}; {what}" if after else f"{what}: {error}") from error


def _from_rows(rows: Rows, notes: list[str]) -> Table:
    """Put series side by side: one row for each time that any of them has."""
    note_names(notes, rows.covariates, "column", "beside y left out")
    codes, names = pd.factorize(np.array([str(name) for name in rows.ids], dtype=object)[rows.codes])
    members = rows_by_series(rows.times, codes, notes)
    _check_overlap(rows.times, codes, names)
    times = _align_each(rows.times, members, list(names), notes)
    table = pd.Series(rows.values[:, 0]).groupby([times, codes]).mean().unstack()
    return _table(table.index, table.to_numpy(), list(names), notes)


def _align_each(times: pd.Index, members: list[Integers], names: list[object], notes: list[str]) -> pd.Index:
    """Move the times of each of several series to regular ones of its own: what jitters in one is no step of all.

    Raises:
        TitansError: the series have one step and lie between each other.
    """
    if len(members) < 2 or min(map(len, members)) < MINIMUM_STEPS:
        return times
    try:
        frequency, found = align_all(names, [times[rows] for rows in members], None)
    except TitansError:  # of several steps, of which the finest may be that of all
        return times
    aligned = [alignment for alignment in found if alignment is not None]
    if len(aligned) < len(members):
        return times
    moved = times.to_series().reset_index(drop=True)
    for rows, alignment in zip(members, aligned, strict=True):
        moved[rows] = alignment.times[alignment.place]
    stamps = pd.Index(moved)
    if infer_frequency(stamps.unique().sort_values()) != frequency:
        raise TitansError(
            f"the series follow one step ({frequency}) at different times, as {times[members[0][0]]} and "
            f"{times[members[1][0]]}: shift them to the same times, or forecast them file by file, or with "
            "TitansForecaster"
        )
    note_moved(aligned, frequency, notes)
    return stamps


def _check_overlap(times: pd.Index, codes: Integers, names: Sequence[str]) -> None:
    """Refuse series with a gap of more than all their steps between one and the next: no table holds both."""
    spans = pd.Series(times).groupby(codes).agg(["min", "max"]).sort_values("min")
    ends = spans["max"].cummax().shift()
    gap = (spans["min"] - ends).to_numpy()[1:] if len(spans) > 1 else []
    covered = (spans["max"] - spans["min"]).sum()
    if len(gap) and (gap > covered).any():
        after = int((gap > covered).argmax()) + 1
        raise TitansError(
            f'the series do not overlap in time ("{names[spans.index[after]]}" begins at {spans["min"].iloc[after]}, '
            f"all before it end by {ends.iloc[after]}): forecast them file by file, or with TitansForecaster"
        )


def _note_texts(texts: pd.DataFrame, notes: list[str]) -> str:
    """Say which columns hold no numbers; if one may name series, also what to do then, and return that."""
    named = [f'{name} ("{column.dropna().iloc[0]}")' for name, column in texts.items()]
    note_names(notes, named, "column", "without numbers left out")
    repeated = [f'"{name}"' for name, column in texts.items() if 1 < column.nunique() < len(column) / MINIMUM_STEPS]
    if not repeated:
        return ""
    hint = f"if {' or '.join(repeated)} tells series apart, rename it unique_id, the time ds and what to forecast y"
    notes.append(hint)
    return hint


def interpolate(values: Floats) -> Floats:
    """Fill what is missing in `[T, C]`: on a line between its neighbours, at the ends with the nearest number."""
    return np.array(pd.DataFrame(values).interpolate(limit_direction="both"), dtype=np.float64)


def _table(times: pd.Index, values: Floats, names: list[str], notes: list[str]) -> Table:
    """Clean rows `[n, C]`."""
    values = without_infinite(values, names, notes)
    empty = np.logical_and.reduce(np.isnan(values))
    if empty.all():
        raise TitansError("no column holds a number: expected at least one number beside the times")
    left_out = [name for name, without in zip(names, empty, strict=True) if without]
    note_names(notes, left_out, "empty column", "left out")
    names, values = [name for name in names if name not in left_out], values[:, ~empty]
    order = rows_by_series(times, np.zeros(len(times), np.int64), notes)[0]
    times, values = times[order], values[order]
    if (steps := len(times.unique())) < MINIMUM_STEPS:
        raise TitansError(f"there {is_are(steps)} only {counted(steps, 'time')}: expected at least {MINIMUM_STEPS}")
    frequency = infer_frequency(times)
    aligned = align(times, frequency)
    note_alignments([aligned], frequency, notes)
    values = mean_per_step(values, aligned.place, len(aligned.times))
    note_values(list(zip(names, values.T, strict=True)), "column", notes)
    return Table(pd.DataFrame(values, index=aligned.times.rename(TIME), columns=names), frequency, notes)
