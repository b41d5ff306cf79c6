"""How far forecasts are off: mean squared and mean absolute error over all windows."""

from __future__ import annotations

import math
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


class Errors:
    """Sums of errors, in float64: the mean of many batches is the mean over all their numbers."""

    def __init__(self) -> None:
        self.squared = self.absolute = 0.0
        self.windows = self.numbers = 0

    def add(self, prediction: Tensor, future: Tensor) -> None:
        """Count a batch of forecasts `[B, H, C]` in, on any device; what came does not count where it is NaN."""
        if prediction.shape != future.shape:  # would be broadcast, and scored wrongly
            raise TitansError(
                f"the model forecasts {tuple(prediction.shape)}, expected [windows, horizon, channels] = "
                f"{tuple(future.shape)}"
            )
        error = prediction.detach().cpu().double() - future.cpu().double()  # not every device knows float64
        missing = future.isnan().cpu()
        error.masked_fill_(missing, 0.0)
        self.squared += float(error.square().sum())
        self.absolute += float(error.abs().sum())
        self.windows += len(future)
        self.numbers += error.numel() - int(missing.sum())

    def scores(self) -> Scores:
        """The means over everything counted in; NaN when a forecast was, or nothing counted."""
        if not self.numbers:
            return Scores(math.nan, math.nan, self.windows)
        return Scores(self.squared / self.numbers, self.absolute / self.numbers, self.windows)
