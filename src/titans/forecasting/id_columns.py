"""Rows of a text file that share their times: those of several series, which one column tells apart."""

from __future__ import annotations

import numpy as np

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.cleaning import listed, to_numbers
from titans.forecasting.frequency import FILLED
from titans.forecasting.long_frames import ID, TARGET, TIME
from titans.forecasting.snapping import MOSTLY
from titans.forecasting.times import Times

_A_FEW, _MANY = 1.1, 1.5  # rows for each time: fewer may be doubled by mistake; so many are not, whatever they hold


def long_from_shared_times(
    cells: pd.DataFrame, time_names: list[str], times: Times, decimal: str, notes: list[str]
) -> pd.DataFrame | None:
    """Make a long frame of cells where many times have several rows.

    Args:
        cells: of a text file.
        time_names: its columns of time.
        times: what they hold.
        decimal: the sign of decimals in text.
        notes: what was done is added here.

    Returns:
        The columns unique_id, ds and y; None where rows do not share their times.

    Raises:
        TitansError: they do, and no column names the series, or one does so for single rows (as of purchases), or not
            one column holds its numbers.
    """
    if times.index.is_unique:
        return None
    rows = cells.loc[times.known].assign(**{time_names[0]: times.index}).drop(columns=time_names[1:]).drop_duplicates()
    time = rows.pop(time_names[0])
    if len(rows) < _A_FEW * time.nunique():
        return None
    first = time[time.duplicated()].iloc[0]
    numbers = {name: found[0] for name in rows if (found := to_numbers(rows[name], decimal))}
    texts = [name for name in rows if name not in numbers]
    if len(texts) > 1:  # they may name the series together
        rows["/".join(texts)] = rows[texts].astype(str).agg("/".join, axis=1)
        texts.append("/".join(texts))
    whole = [name for name, values in numbers.items() if len(numbers) > 1 and (values == np.rint(values)).all()]
    whole.sort(key=lambda name: rows[name].nunique())
    apart = [name for name in (*texts, *whole) if not rows[name].isna().any() and _tells_apart(time, rows[name])]
    if len(rows) < _MANY * time.nunique() and (not apart or apart[0] not in texts):
        return None
    names = [name for name in apart if _come_back(time, rows[name])]
    if apart and not names:
        raise TitansError(
            f'many times have several rows (first {first}), and the values of "{apart[0]}", which tells these apart, '
            f"come back at too few times to be series ({rows[apart[0]].nunique():,} values in {len(rows):,} rows): add "
            "up the rows of each time"
        )
    if not names:
        raise TitansError(
            f"many times have several rows (first {first}), and no single column tells these apart: name the series of "
            "each row in a column unique_id, with the time in ds and the numbers in y, or add up the rows of each time"
        )
    targets = [name for name in numbers if name != names[0]]
    if len(targets) != 1:
        raise TitansError(
            f'many times have several rows (first {first}), which the column "{names[0]}" tells apart: rename it '
            f"unique_id, the time ds, and the one to forecast y (there {'are ' if targets else 'is '}"
            f"{listed(targets) or 'no other column of numbers'})"
        )
    notes.append(f'many times have several rows, one for each value of "{names[0]}": each is a series')
    return pd.DataFrame({ID: rows[names[0]].astype(str), TIME: time, TARGET: numbers[targets[0]]})


def _tells_apart(time: pd.Series, names: pd.Series) -> bool:
    return bool(pd.DataFrame({"time": time, "name": names}).duplicated().mean() <= 1 - MOSTLY)


def _come_back(time: pd.Series, names: pd.Series) -> bool:
    """Whether names are those of series: with a row at half of the times from their first to their last, or more."""
    place = pd.Series(pd.factorize(time, sort=True)[0], index=names.index).groupby(names, sort=False)
    return bool(names.nunique() < len(names) / 2 and len(names) >= FILLED * (place.max() - place.min() + 1).sum())
