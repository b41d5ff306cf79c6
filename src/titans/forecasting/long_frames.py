"""Long frames of time series, `unique_id, ds, y`: checked, and laid on a regular grid series by series."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.cleaning import (
    Floats,
    counted,
    listed,
    spread,
    to_numbers,
    was_were,
    without_infinite,
)
from titans.forecasting.frequency import Alignment, align, check_frequency, infer_frequency
from titans.forecasting.time_zones import Integers
from titans.forecasting.times import FORMS, Times, parse_times

ID, TIME, TARGET = "unique_id", "ds", "y"
_FEW = 3  # rows that no step can be told from
_VOTERS = 20  # of many series, the longest decide on the frequency


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


def regular(frame: pd.DataFrame, frequency: str | int | None = None, minimum: int = 1) -> Panel:
    """Lay each series of a long frame on a regular grid; what is missing is NaN.

    Rows may come in any order. Rows of a series with one time are averaged; times near the grid are moved to it;
    infinite numbers count as missing; covariates that are no numbers, and series without a number, are left out.
    All that is done is said in the panel's notes.

    Args:
        frame: the columns unique_id, ds (dates with or without a time zone, periods, whole numbers, or text) and y; any
            others are covariates.
        frequency: the step of time, as a pandas offset alias or a whole number. Default: found in the times.
        minimum: steps of time that each series must have. Default 1.

    Returns:
        The series.

    Raises:
        TitansError: a column is missing or unreadable, times follow no regular step, or a series is too short.
    """
    if frequency is not None:
        check_frequency(frequency)
    notes: list[str] = []
    rows = read_rows(frame, notes)
    order = sort_rows(rows.times, rows.codes, notes)
    ends = np.cumsum(np.bincount(rows.codes, minlength=len(rows.ids)))
    members = np.split(order, ends[:-1])  # the rows of each series, in order of time
    times = [rows.times[member] for member in members]
    frequency, laid = align_all(rows.ids, times, frequency)
    if off := [name for name, grid in zip(rows.ids, laid, strict=True) if grid is None]:
        notes.append(
            f"{counted(len(off), 'series', 'series')} of a few rows, off the others' steps, left out: {listed(off)}"
        )
    kept = [
        (name, member, grid) for name, member, grid in zip(rows.ids, members, laid, strict=True) if grid is not None
    ]
    note_grids([grid for _, _, grid in kept], frequency, notes)
    series, empty = [], []
    for name, member, grid in kept:
        values = spread(rows.values[member], grid.place, len(grid.times))
        if np.isnan(values[:, 0]).all():
            empty.append(name)
        else:
            series.append(Series(name, grid.times, values[:, 0], values[:, 1:]))
    if not series:
        raise TitansError('the column "y" holds no number: expected at least one')
    if empty:
        notes.append(f"{counted(len(empty), 'series', 'series')} without a number left out: {listed(empty)}")
    _check_lengths(series, minimum)
    _note_values(series, notes)
    return Panel(series, frequency, rows.covariates, notes)


def without_short(panel: Panel, enough: Sequence[bool], why: str) -> Panel:
    """Leave out series that are too short, where others are not.

    Args:
        panel: the series.
        enough: which are long enough; if none is, all are kept.
        why: what is wrong with the others, such as "with fewer than 4 values".

    Returns:
        The panel, with a note of what was left out.
    """
    if all(enough) or not any(enough):
        return panel
    short = [one.unique_id for one, long in zip(panel.series, enough, strict=True) if not long]
    note = f"{counted(len(short), 'series', 'series')} {why} left out: {listed(short)}"
    series = [one for one, long in zip(panel.series, enough, strict=True) if long]
    return dataclasses.replace(panel, series=series, notes=[*panel.notes, note])


def read_rows(frame: pd.DataFrame, notes: list[str], *, text_file: bool = False, like: pd.Index | None = None) -> Rows:
    """Check a long frame and read its columns.

    Args:
        frame: the columns unique_id, ds and y, and covariates.
        notes: what was done is added here.
        text_file: the frame comes from a text file; see `parse_times`. Entries of y that are no numbers are then
            missing, if they are few.
        like: times read before, which these go on with. Default: none.

    Returns:
        Its rows.

    Raises:
        TitansError: a column is missing or unreadable.
    """
    _check_columns(frame)
    times = parse_times(frame[TIME], text_file=text_file, like=like)
    if times is None or (times.unreadable is not None and not text_file):
        example = times.unreadable if times else next(iter(frame[TIME].dropna().astype(str)), "nothing")
        raise TitansError(f'the column "ds" holds {example!r}, which is no time: expected {FORMS}')
    notes += time_notes(times)
    frame = frame.loc[times.known]
    columns, left_out = {}, []
    for name in frame.columns.drop([ID, TIME]):
        numbers = to_numbers(frame[name])
        if name == TARGET and (numbers is None or (numbers[1] and not text_file)):
            raise _refuse_text(frame[TARGET])
        if numbers is None:
            left_out.append(name)
            continue
        columns[str(name)], remarks = numbers
        notes += remarks
    if left_out:
        notes.append(f"{counted(len(left_out), 'column')} without numbers left out: {listed(left_out)}")
    names = [TARGET, *(name for name in columns if name != TARGET)]
    values = without_infinite(np.stack([columns[name] for name in names], 1), names, notes)
    codes, ids = pd.factorize(frame[ID])
    return Rows(list(ids), codes.astype(np.int64), times.index, values, names[1:])


def time_notes(times: Times) -> list[str]:
    """Say how times were read, and how many rows have none."""
    dropped = int((~times.known).sum())
    if not dropped:
        return list(times.notes)
    such = "" if times.unreadable is None else f' (such as "{times.unreadable}")'
    return [*times.notes, f"{counted(dropped, 'row')} without a time{such} {was_were(dropped)} left out"]


def long_columns(names: list[str]) -> dict[str, str] | None:
    """The columns of a text file that make it a long frame, with the names they must have; None if it is none."""
    found = {name: name.lower() for name in names if name.lower() in (ID, TIME, TARGET)}
    return found if sorted(found.values()) == sorted((ID, TIME, TARGET)) else None


def sort_rows(times: pd.Index, codes: Integers, notes: list[str]) -> Integers:
    """Order rows by series and time, and say where they were not, or where a time repeats.

    Args:
        times: the time of each row `[n]`.
        codes: the series of each row `[n]`.
        notes: what was done is added here.

    Returns:
        The rows in order `[n]`.
    """
    clock = times.asi8 if isinstance(times, pd.DatetimeIndex) else times.to_numpy()
    given, order = np.argsort(codes, kind="stable"), np.lexsort((clock, codes))
    if (given != order).any():
        notes.append("rows were not in order of time and were sorted")
    repeated = (np.diff(clock[order]) == 0) & (np.diff(codes[order]) == 0)
    if number := int(repeated.sum()):
        first = times[order[int(repeated.argmax())]]
        notes.append(
            f"{counted(number, 'row')} with the same time as another {was_were(number)} averaged with it "
            f"(first at {first})"
        )
    return order.astype(np.int64)


def note_grids(grids: Sequence[Alignment], frequency: str | int, notes: list[str]) -> None:
    """Say which times were moved to their grid, and which steps have no row.

    Args:
        grids: one of each series.
        frequency: their step.
        notes: the sentences are added here.
    """
    note_moved(grids, frequency, notes)
    absent = [np.flatnonzero(np.bincount(grid.place, minlength=len(grid.times)) == 0) for grid in grids]
    if number := sum(map(len, absent)):
        steps = sum(len(grid.times) for grid in grids)
        first = next(grid.times[steps[0]] for grid, steps in zip(grids, absent, strict=True) if len(steps))
        notes.append(f"{number:,} of {steps:,} steps of time had no row (first {first})")


def note_moved(grids: Sequence[Alignment], frequency: str | int, notes: list[str]) -> None:
    """Say which times were moved to their grid; arguments as of `note_grids`."""
    if moved := sum(grid.moved for grid in grids):
        notes.append(
            f"{counted(moved, 'time')} {was_were(moved)} moved to the nearest of equally spaced times (frequency "
            f"{frequency})"
        )


def _note_values(series: list[Series], notes: list[str]) -> None:
    missing = {one.unique_id: int(np.isnan(one.y).sum()) for one in series}
    if number := sum(missing.values()):
        named = listed([f"{name}: {count:,}" for name, count in missing.items() if count])
        notes.append(f"{number:,} of {sum(len(one.y) for one in series):,} values are missing ({named})")
    if constant := [one.unique_id for one in series if np.nanmin(one.y) == np.nanmax(one.y)]:
        notes.append(f"{counted(len(constant), 'series', 'series')} of one constant value: {listed(constant)}")


def _check_lengths(series: list[Series], minimum: int) -> None:
    short = [f"{one.unique_id}: {len(one.y):,}" for one in series if len(one.y) < minimum]
    if short:
        raise TitansError(
            f"{counted(len(short), 'series is', 'series are')} too short ({listed(short)}): expected at least "
            f"{minimum:,} steps of time; give a longer history or leave them out"
        )


@contextlib.contextmanager
def _about(name: object, *, blocks: bool) -> Iterator[None]:
    """Begin what is refused with the name of the series; pass over it where that blocks no others."""
    try:
        yield
    except TitansError as error:
        if not blocks:
            return
        raise TitansError(f'series "{name}": {error}') from error


def _check_columns(frame: pd.DataFrame) -> None:
    if not isinstance(frame, pd.DataFrame):
        raise TitansError(
            f"expected a pandas DataFrame with the columns unique_id, ds and y, not {type(frame).__name__}"
        )
    names = list(frame.columns)
    if missing := [name for name in (ID, TIME, TARGET) if name not in names]:
        found = listed(names) or "none"
        raise TitansError(
            f"the frame has no column {' and no column '.join(missing)} (columns: {found}): expected unique_id (name "
            "of the series), ds (time) and y (number), and perhaps others"
        )
    if not frame.columns.is_unique:
        raise TitansError(
            f"two columns of the frame are called {frame.columns[frame.columns.duplicated()][0]!r}: rename one"
        )
    if frame.empty:
        raise TitansError("the frame has no rows: expected one for each series and time")
    if unnamed := int(frame[ID].isna().sum()):
        raise TitansError(f"unique_id is missing in {counted(unnamed, 'row')}: name the series in every row")


def _refuse_text(column: pd.Series) -> TitansError:
    text = column.dropna().astype(str)
    unreadable = text[pd.to_numeric(text, errors="coerce").isna()]
    found = repr(unreadable.iloc[0]) if len(unreadable) else f"values of type {column.dtype}"
    return TitansError(f'the column "y" holds {found}: expected numbers, and NaN where one is missing')


def align_all(
    ids: list[object], times: list[pd.Index], frequency: str | int | None
) -> tuple[str | int, list[Alignment | None]]:
    """Lay a grid for every series, all of one frequency: the first of those likely that fits them all.

    Beside longer ones, series of a few rows have no say: where they do not fit, they have no grid.
    """
    refused: TitansError | None = None
    few = _FEW if max(map(len, times)) > _FEW else 0
    for candidate in [frequency] if frequency is not None else _likely(ids, times, few):
        try:
            grids: list[Alignment | None] = []
            for name, stamps in zip(ids, times, strict=True):
                with _about(name, blocks=len(stamps) > few):
                    grids.append(None)
                    grids[-1] = align(stamps, candidate)
            return candidate, grids
        except TitansError as error:
            refused = refused or error
    raise refused or TitansError("no series has two times, from which to find the frequency: give it")


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
