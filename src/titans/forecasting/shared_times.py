"""Rows of a text file that share their times: those of several series, which one column tells apart."""

from __future__ import annotations

import numpy as np

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.cleaning import listed, to_numbers
from titans.forecasting.jitter import MOSTLY
from titans.forecasting.long_frames import ID, TARGET, TIME
from titans.forecasting.times import Times

_ROWS = 1.5  # for each time, on average, that a few doubled rows do not explain


def split_series(
    cells: pd.DataFrame, time_names: list[str], times: Times, decimal: str, notes: list[str]
) -> pd.DataFrame | None:
    """Make a long frame of cells where most times have several rows.

    Args:
        cells: of a text file.
        time_names: its columns of time.
        times: what they hold.
        decimal: the sign of decimals in text.
        notes: what was done is added here.

    Returns:
        The columns unique_id, ds and y; None where rows do not share their times.

    Raises:
        TitansError: they do, and no column names the series, or not one column holds its numbers.
    """
    rows = cells.loc[times.known].assign(**{time_names[0]: times.index}).drop(columns=time_names[1:]).drop_duplicates()
    time = rows.pop(time_names[0])
    if len(rows) < _ROWS * time.nunique():
        return None
    first = time[time.duplicated()].iloc[0]
    numbers = {name: found[0] for name in rows if (found := to_numbers(rows[name], decimal))}
    names = [name for name in rows if name not in numbers]
    whole = [name for name, values in numbers.items() if len(numbers) > 1 and (values == np.rint(values)).all()]
    names += sorted(
        (name for name in whole if rows[name].nunique() < len(rows) / 2), key=lambda name: rows[name].nunique()
    )
    names = [name for name in names if not rows[name].isna().any() and _tells_apart(time, rows[name])]
    if not names:
        raise TitansError(
            f"most times have several rows (first {first}), and no column tells these apart: name the series of each "
            "row in a column unique_id, with the time in ds and the numbers in y, or add up the rows of each time"
        )
    targets = [name for name in numbers if name != names[0]]
    if len(targets) != 1:
        raise TitansError(
            f'most times have several rows (first {first}), which the column "{names[0]}" tells apart: rename it '
            f"unique_id, the time ds, and the one to forecast y (there {'are ' if targets else 'is '}"
            f"{listed(targets) or 'no other column of numbers'})"
        )
    notes.append(f'most times have several rows, one for each value of "{names[0]}": each is a series')
    return pd.DataFrame({ID: rows[names[0]].astype(str), TIME: time, TARGET: numbers[targets[0]]})


def _tells_apart(time: pd.Series, names: pd.Series) -> bool:
    return bool(pd.DataFrame({"time": time, "name": names}).duplicated().mean() <= 1 - MOSTLY)
