"""Columns beside y: covariates by their names, and what is known of each series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.long_frames import ID, TARGET
from titans.forecasting.numbers import Floats, to_numbers
from titans.forecasting.sentences import listed


def static_numbers(frame: pd.DataFrame | None, ids: Sequence[object]) -> Tensor | None:
    """Read the numbers that are known of each series, scaled over the series, `[S, Z]`; None without a frame.

    Raises:
        TitansError: a series is missing or named twice, a number is missing, or there is none.
    """
    if frame is None:
        return None
    if not isinstance(frame, pd.DataFrame) or ID not in frame.columns:
        raise TitansError("static_df has no column unique_id: expected one row for each series")
    columns = [to_numbers(frame[name]) for name in frame.columns if name != ID]
    numbers = [column for column in columns if column is not None]
    if not numbers:
        raise TitansError("static_df has no column of numbers beside unique_id: expected at least one")
    names = pd.Index(frame[ID])
    if not names.is_unique:
        raise TitansError(f'static_df names the series "{names[names.duplicated()][0]}" twice: keep one row')
    rows = names.get_indexer(pd.Index(ids))
    values = np.stack(numbers, 1)[rows]
    lacking = (rows < 0) | ~np.isfinite(values).all(1)
    if lacking.any():
        raise TitansError(f'static_df lacks the numbers of the series "{ids[int(lacking.argmax())]}": add them')
    std = values.std(0)
    return torch.from_numpy(((values - values.mean(0)) / np.where(std > 0, std, 1.0)).astype(np.float32))


def exog_columns(found: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Find covariates among the columns of numbers of a frame."""
    if missing := [name for name in wanted if name not in found]:
        raise TitansError(
            f"the frame has no column of numbers called {listed(missing)}, which futr_exog_list names: it has "
            f"{listed([TARGET, *found])}"
        )
    return [list(found).index(name) for name in wanted]


def exog_numbers(column: pd.Series) -> Floats:
    """Read a covariate of `futr_df`."""
    numbers = to_numbers(column)
    if numbers is None:
        raise TitansError(f'the column "{column.name}" of futr_df holds no numbers')
    return numbers
