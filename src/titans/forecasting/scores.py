"""How far forecasts are off: mean squared and mean absolute error over all windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from titans.errors import TitansError
from titans.forecasting.windows import Windows

Predict = Callable[[Tensor], Tensor]
"""Forecasts `[B, H, C]` of pasts `[B, L, C]`."""


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
        """Count one batch in.

        Args:
            prediction: forecasts, `[B, H, C]`, on any device.
            future: what came, `[B, H, C]`; NaN where it is missing, which does not count.

        Raises:
            TitansError: the forecasts have another shape.
        """
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


def score(
    predict: Predict,
    windows: Windows,
    *,
    batch_size: int = 256,
    progress: Callable[[int], None] | None = None,
) -> Scores:
    """Forecast every window, without gradients, and measure the errors.

    Args:
        predict: a model or function from pasts `[B, L, C]` to forecasts `[B, H, C]`. A module is given its pasts
            on its own device, and is in evaluation mode for the time.
        windows: the windows; all of them count alike, those of a last, smaller batch too.
        batch_size: windows forecast at once; changes speed and memory, not the result. Default 256.
        progress: called with the number of windows forecast since the last call. Default: nothing.

    Returns:
        The errors over all windows.

    Raises:
        TitansError: the forecasts have the wrong shape, or are not finite.
    """
    errors, device = Errors(), _device(predict)
    with torch.no_grad(), _evaluation_mode(predict):
        for past, future in windows.batches(batch_size):
            errors.add(predict(past if device is None else past.to(device)), future)
            if progress is not None:
                progress(len(past))
    scores = errors.scores()
    if not math.isfinite(scores.mse):
        raise TitansError(f"the mean squared error is {scores.mse}: the model's weights are damaged, or it diverged")
    return scores


def _device(predict: Predict) -> torch.device | None:
    parameter = next(predict.parameters(), None) if isinstance(predict, nn.Module) else None
    return None if parameter is None else parameter.device


@contextmanager
def _evaluation_mode(predict: Predict) -> Iterator[None]:
    if not isinstance(predict, nn.Module):
        yield
        return
    was_training = predict.training
    predict.eval()
    try:
        yield
    finally:
        predict.train(was_training)
