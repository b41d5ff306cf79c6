"""How far forecasts are off: mean squared and mean absolute error over all windows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from titans.errors import TitansError


class Scores(NamedTuple):
    """The errors of forecasts, in the units of the series.

    Args:
        mse: mean squared error over windows, horizon and channels.
        mae: mean absolute error over the same.
        windows: how many windows were forecast.
    """

    mse: float
    mae: float
    windows: int


def mean_errors(batches: Iterable[tuple[Tensor, Tensor]]) -> Scores:
    """Score forecasts against what came, both `[B, H, C]`: the mean over all numbers of all batches, in float64.

    A number that is missing (NaN) in what came does not count. The means are NaN when a forecast was, or nothing
    counted.

    Raises:
        TitansError: forecasts have another shape than what came.
    """
    squared = absolute = 0.0
    windows = numbers = 0
    for prediction, future in batches:
        if prediction.shape != future.shape:  # would be broadcast, and scored wrongly
            raise TitansError(
                f"the model forecasts {tuple(prediction.shape)}, expected [windows, horizon, channels] = "
                f"{tuple(future.shape)}"
            )
        error = prediction.detach().cpu().double() - future.cpu().double()  # not every device knows float64
        missing = future.isnan().cpu()
        error.masked_fill_(missing, 0.0)
        squared += float(error.square().sum())
        absolute += float(error.abs().sum())
        windows += len(future)
        numbers += error.numel() - int(missing.sum())
    return Scores(squared / numbers, absolute / numbers, windows) if numbers else Scores(math.nan, math.nan, windows)
