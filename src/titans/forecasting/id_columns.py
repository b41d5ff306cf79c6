"""Rows of a text file that share their times: those of several series, which one column tells apart."""

from __future__ import annotations

import numpy as np

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.alignment import FILLED
from titans.forecasting.long_frames import ID, TARGET, TIME
from titans.forecasting.numbers import MOSTLY
from titans.forecasting.sentences import listed
from titans.forecasting.times import Times

_A_FEW, _MANY = 1.1, 1.5  # rows for each time: fewer may be doubled by mistake; so many are not, whatever they hold


def long_from_shared_times(
    cells: pd.DataFrame, numbers: pd.DataFrame, times: Times, notes: list[str]
) -> pd.DataFrame | None:
    """Make a long frame of the cells of a text file, without its times, where many times have several rows; else None.

    Raises:
        TitansError: no column names the series, or one does so for single rows (as of purchases), or not one column
            holds their numbers.
    """
    if times.index.is_unique:
        return None
    rows = cells[times.known].assign(**{TIME: times.index}).drop_duplicates()
    time, numbers = rows[TIME], numbers.loc[rows.index]
    if len(rows) < _A_FEW * time.nunique():
        return None
    said = f"many times have several rows (first {time[time.duplicated()].iloc[0]})"
    texts = [name for name in cells if name not in numbers]
    if len(texts) > 1:  # they may name the series together
        rows["/".join(texts)] = rows[texts].astype(str).agg("/".join, axis=1)
        texts.append("/".join(texts))
    whole = [name for name in numbers if len(numbers.columns) > 1 and (numbers[name] == np.rint(numbers[name])).all()]
    whole.sort(key=lambda name: rows[name].nunique())
    apart = [
        name
        for name in (*texts, *whole)
        if rows[name].notna().all() and rows.duplicated([TIME, name]).mean() <= 1 - MOSTLY
    ]
    if len(rows) < _MANY * time.nunique() and (not apart or apart[0] not in texts):
        return None
    names = [name for name in apart if _come_back(time, rows[name])]
    if apart and not names:
        raise TitansError(
            f'{said}, and the values of "{apart[0]}", which tells these apart, come back at too few times to be series '
            f"({rows[apart[0]].nunique():,} values in {len(rows):,} rows): add up the rows of each time"
        )
    if not names:
        raise TitansError(
            f"{said}, and no single column tells these apart: name the series of each row in a column unique_id, with "
            "the time in ds and the numbers in y, or add up the rows of each time"
        )
    targets = [name for name in numbers if name != names[0]]
    if len(targets) != 1:
        raise TitansError(
            f'{said}, which the column "{names[0]}" tells apart: rename it unique_id, the time ds, and the one to '
            f"forecast y (there {'are ' if targets else 'is '}{listed(targets) or 'no other column of numbers'})"
        )
    notes.append(f'many times have several rows, one for each value of "{names[0]}": each is a series')
    return pd.DataFrame({ID: rows[names[0]], TIME: time, TARGET: numbers[targets[0]]})


def _come_back(time: pd.Series, names: pd.Series) -> bool:
    """Whether names are those of series: with a row at half of the times from their first to their last, or more."""
    place = pd.Series(pd.factorize(time, sort=True)[0], index=names.index).groupby(names, sort=False)
    return bool(names.nunique() < len(names) / 2 and len(names) >= FILLED * (place.max() - place.min() + 1).sum())
