"""Numbers from columns, rows laid on a grid, and the sentences that say what was done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.snapping import MOSTLY
from titans.forecasting.time_zones import Integers

LIMIT = 1e30
"""Larger numbers are refused: their squares and sums leave float32, which models compute in."""

Floats = npt.NDArray[np.float64]
_THOUSANDS = "separators of thousands"
_NAMED = 5  # columns that a sentence names before it counts the others


def to_numbers(column: pd.Series, decimal: str = ".") -> tuple[Floats, list[str]] | None:
    """Read a column as numbers; what is missing or unreadable becomes NaN.

    Args:
        column: numbers, truth values (as 0 and 1), or text.
        decimal: the sign of decimals in text, a point or a comma. Commas are read otherwise where no number of the
            column fits, as separators of thousands or as decimals. Default a point.

    Returns:
        The numbers `[n]` and what was done; None where less than nine in ten of the entries are numbers.
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan), []
    given = column.dropna()
    if pd.api.types.infer_dtype(given) not in ("string", "mixed", "mixed-integer", "decimal", "integer", "floating"):
        return None if len(given) else (np.full(len(column), np.nan), [])
    text = given.astype(str).str.strip()
    numbers, notes = _to_floats(text), list[str]()
    if numbers.isna().any() and (meaning := _meaning_of_commas(text, decimal)):
        notes = [f'commas in "{column.name}" were read as {meaning}'] if decimal == "." else []
        numbers = _to_floats(text.str.replace(",", "") if meaning == _THOUSANDS else _with_points(text))
    if numbers.notna().mean() < MOSTLY:
        return None
    if unreadable := int(numbers.isna().sum()):
        example = text[numbers.isna()].iloc[0]
        notes.append(
            f'{counted(unreadable, "entry", "entries")} of "{column.name}" that {is_are(unreadable)} no number (such '
            f'as "{example}") {was_were(unreadable)} treated as missing'
        )
    values = np.full(len(column), np.nan)
    values[column.notna().to_numpy()] = numbers  # by place: labels of the index may repeat
    return values, notes


def without_infinite(values: Floats, names: Sequence[str], notes: list[str]) -> Floats:
    """Turn infinite numbers into missing ones, and refuse numbers too large to compute with.

    Args:
        values: numbers `[n, C]`.
        names: of the columns `[C]`.
        notes: what was done is added here.

    Returns:
        The numbers, finite or NaN.

    Raises:
        TitansError: a number is larger than `LIMIT`.
    """
    infinite = np.isinf(values)
    if infinite.any():
        notes.append(
            f"{counted(int(infinite.sum()), 'infinite value')} treated as missing ({per_column(infinite, names)})"
        )
        values = np.where(infinite, np.nan, values)
    huge = np.abs(values) > LIMIT
    if huge.any():
        row, column = np.argwhere(huge)[0]
        raise TitansError(
            f'the column "{names[column]}" holds {values[row, column]:g}, larger than {LIMIT:g}: leave the cell empty '
            "if this marks a missing value, or divide the column by a constant"
        )
    return values


def spread(values: Floats, place: Integers, length: int) -> Floats:
    """Put rows on a grid.

    Args:
        values: rows `[n, C]`, with NaN where a number is missing.
        place: the grid point of each row `[n]`.
        length: grid points, T.

    Returns:
        The grid `[T, C]`: the mean of the rows at a point, without those missing; NaN where there is none.
    """
    grid = np.full((length, values.shape[1]), np.nan)
    alone = np.bincount(place, minlength=length)[place] == 1
    grid[place[alone]] = values[alone]
    shared, rows = place[~alone], values[~alone]
    if len(shared):
        points, where = np.unique(shared, return_inverse=True)
        present = ~np.isnan(rows)
        for column in range(values.shape[1]):
            count = np.bincount(where, weights=present[:, column])
            total = np.bincount(where, weights=np.where(present[:, column], rows[:, column], 0.0))
            grid[points, column] = np.divide(total, count, out=np.full(len(points), np.nan), where=count > 0)
    return grid


def fill(values: Floats) -> Floats:
    """Fill what is missing: on a line between its neighbours, at the ends with the nearest number.

    Args:
        values: grid `[T, C]`; no column is NaN throughout.

    Returns:
        The grid without NaN.
    """
    filled = values.copy()
    steps = np.arange(len(values))
    for column in np.flatnonzero(np.isnan(values).any(0)):
        known = ~np.isnan(values[:, column])
        filled[~known, column] = np.interp(steps[~known], steps[known], values[known, column])
    return filled


def _meaning_of_commas(text: pd.Series, decimal: str) -> str | None:
    """What commas within numbers stand for, if all agree."""
    with_comma = text[text.str.contains(r"\d*,\d")]
    if decimal == "." and len(with_comma) and with_comma.str.fullmatch(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?").all():
        return _THOUSANDS
    decimals = with_comma.str.fullmatch(r"[+-]?(?:\d*|\d{1,3}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?")
    return "decimal points" if len(with_comma) and decimals.all() else None


def _with_points(text: pd.Series) -> pd.Series:
    """Write decimal commas as points, and leave out the points that then separate thousands, as in 1.234,5."""
    grouped = text.str.fullmatch(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")
    text = text.where(~grouped, text.str.replace(".", "", regex=False))
    return text.str.replace(",", ".", regex=False)


def _to_floats(text: pd.Series) -> pd.Series:
    return pd.to_numeric(text, errors="coerce").astype(np.float64)


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number with its noun: "1 row", "2,000 rows"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def is_are(number: int) -> str:
    """The verb for so many."""
    return "is" if number == 1 else "are"


def was_were(number: int) -> str:
    """The verb for so many, in the past."""
    return "was" if number == 1 else "were"


def listed(names: Sequence[object]) -> str:
    """The first of many names, and how many follow."""
    more = len(names) - _NAMED
    return ", ".join(map(str, names[:_NAMED])) + (f" and {more:,} more" if more > 0 else "")


def per_column(marked: npt.NDArray[np.bool_], names: Sequence[str]) -> str:
    """How many are marked in each column of `[n, C]` that has any."""
    counts = marked.sum(0)
    return listed([f"{names[column]}: {counts[column]:,}" for column in np.flatnonzero(counts).tolist()])
