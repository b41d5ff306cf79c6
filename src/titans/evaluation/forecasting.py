"""The protocol of long-term forecasting: who is trained on what, in which scale, and what is measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from titans.errors import TitansError
from titans.evaluation.inference import evaluating
from titans.forecasting.scores import Scores, mean_errors
from titans.forecasting.seasonal import repeat_season, seasonal_profile
from titans.forecasting.windows import Windows

Predict = Callable[[Tensor], Tensor]
"""Forecasts `[B, H, C]` of pasts `[B, L, C]`."""

PROTOCOLS = ("ett", "custom")
_ETT_HOURS = (8640, 11520, 14400)  # 12, 4 and 4 months of 30 days
_HOURLY, _QUARTERLY = ("h", "1h", "60min"), ("15min",)  # as pandas spells them


class Split(NamedTuple):
    """The rows of each part; validation and test begin one look-back early, inside the part before them.

    Args:
        train: rows to train on.
        validation: rows to choose by.
        test: rows to report on.
    """

    train: range
    validation: range
    test: range


def split_rows(rows: int, name: str, protocol: str, context_length: int, frequency: str | None = None) -> Split:
    """Say which rows of a data set are for what.

    Args:
        rows: rows of the data set.
        name: what it is called, as ETTh1 or ETTm1.
        protocol: "ett": 8,640 hours, 2,880 and 2,880, and nothing of what follows; "custom": 70, 10 and 20 %.
        context_length: look-back L: the first future of validation and test is the first row that is theirs.
        frequency: time step as pandas calls it, "h" or "15min". Default: by the name.

    Raises:
        TitansError: the protocol is unknown, or "ett" and the data set is too short or of an unknown time step.
    """
    if protocol == "ett":
        per_hour = _rows_per_hour(name, frequency)
        train, validation, test = (per_hour * hours for hours in _ETT_HOURS)
        if rows < test:
            raise TitansError(
                f"{name} has {rows:,} rows, but the ett protocol needs the first {test:,} of data with "
                f"{per_hour} an hour: use the custom protocol"
            )
    elif protocol == "custom":
        train, test = int(rows * 0.7), rows
        validation = rows - int(rows * 0.2)
    else:
        raise TitansError(f"the protocol is {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    if train < context_length:
        raise TitansError(f"the train part of {name} has {train:,} rows, not even a look-back of {context_length:,}")
    return Split(range(train), range(train - context_length, validation), range(validation - context_length, test))


def _rows_per_hour(name: str, frequency: str | None) -> int:
    if frequency in _QUARTERLY or (frequency is None and name.lower().startswith("ettm")):
        return 4
    if frequency in _HOURLY or (frequency is None and name.lower().startswith("etth")):
        return 1
    step = "a time step nobody gave" if frequency is None else f"a time step of {frequency}"
    raise TitansError(
        f"{name} has {step}, but the ett protocol is for hourly (ETTh) and 15-minute (ETTm) data: use the custom "
        "protocol"
    )


def standardize(values: Tensor, rows: range) -> Tensor:
    """Shift and stretch each channel of `[T, C]` so that some of its rows have mean 0 and variance 1, in float64.

    The deviation is that of the population (n, not n - 1, below the line). A channel that is constant in these rows is
    shifted only.
    """
    values = values.double()
    known = values[rows.start : rows.stop]
    constant = known.amax(0) == known.amin(0)  # whose deviation is seldom exactly 0
    return (values - known.mean(0)) / torch.where(constant, 1.0, known.std(0, correction=0))


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A data set made ready by a protocol.

    Args:
        name: what it is called.
        protocol: one of `PROTOCOLS`.
        context_length: look-back L.
        horizons: the horizons asked for.
        split: the rows of each part.
        values: all rows, standardized by the train part, `[T, C]`, float32.
    """

    name: str
    protocol: str
    context_length: int
    horizons: tuple[int, ...]
    split: Split
    values: Tensor

    def windows(self, part: str, horizon: int) -> Windows:
        """All windows of "train", "validation" or "test"; raises TitansError where that is shorter than one."""
        rows = getattr(self.split, part)
        if len(rows) < self.context_length + horizon:
            raise TitansError(
                f"the {part} part of {self.name} has {len(rows):,} rows, but a look-back of {self.context_length:,} "
                f"and a horizon of {horizon:,} need {self.context_length + horizon:,}: use a longer data set, or a "
                "shorter look-back or horizon"
            )
        return Windows(self.values[rows.start : rows.stop], self.context_length, horizon)

    def without_season(self, season: int) -> Benchmark:
        """The data set without the mean of each place of the season, as of the train part.

        Errors stay what they are: what is taken off the truth is taken off the forecast.
        """
        rows = self.split.train
        profile = seasonal_profile(self.values[rows.start : rows.stop], season)
        return dataclasses.replace(self, values=self.values - repeat_season(profile, -rows.start, len(self.values)))

    def describe(self) -> str:
        """Say in one line what is measured how, so that numbers can be compared."""
        parts = ", ".join(f"{part} [{rows.start}, {rows.stop})" for part, rows in self.split._asdict().items())
        counts = ", ".join(f"{len(self.windows('test', h)):,} at horizon {h}" for h in self.horizons)
        return (
            f"{self.name}, protocol {self.protocol}: rows {parts}, look-backs included; look-back "
            f"{self.context_length}; each channel scaled by mean and deviation of the train part; MSE and MAE in "
            f"scaled space over all test windows ({counts}), steps and channels"
        )


def prepare(
    values: Any,
    name: str,
    protocol: str = "custom",
    *,
    context_length: int = 96,
    horizons: Sequence[int] = (96, 192, 336, 720),
    frequency: str | None = None,
) -> Benchmark:
    """Split and scale a data set as a protocol says.

    Args:
        values: the data, `[T, C]`: an array or tensor of finite numbers.
        name: what it is called; under "ett" it tells the time step where `frequency` does not.
        protocol: "ett" or "custom", see `split_rows`. Default "custom".
        context_length: look-back L. Default 96.
        horizons: steps to forecast, one measurement each. Default 96, 192, 336, 720.
        frequency: time step as pandas calls it. Default: by the name.

    Returns:
        The data set, ready.

    Raises:
        TitansError: the values are no finite `[T, C]`, a horizon is none, or the data set is too short.
    """
    series = torch.as_tensor(values, dtype=torch.float64)
    if series.dim() != 2 or not series.shape[1]:
        raise TitansError(f"{name} has the shape {tuple(series.shape)}, expected [rows, channels]")
    missing = int((~series.isfinite()).sum())
    if missing:
        raise TitansError(f"{name} has {missing:,} values that are not finite numbers: fill them in first")
    if context_length < 1:
        raise TitansError(f"the look-back is {context_length}, expected at least 1")
    if not horizons or min(horizons) < 1 or len(set(horizons)) < len(horizons):
        raise TitansError(f"the horizons are {list(horizons)}, expected different numbers of at least 1, as 96, 192")
    rows = split_rows(len(series), name, protocol, context_length, frequency)
    scaled = standardize(series, rows.train).float()
    benchmark = Benchmark(name, protocol, context_length, tuple(horizons), rows, scaled)
    for part in Split._fields:
        benchmark.windows(part, max(horizons))  # too short is known before anything is trained
    return benchmark


def score_forecasts(predict: Predict, windows: Windows, *, batch_size: int = 256) -> Scores:
    """Forecast every window, without gradients, and measure the errors.

    Args:
        predict: a model or function from pasts `[B, L, C]` to forecasts `[B, H, C]`. A model is given its pasts on its
            own device, and is in evaluation mode for the time.
        windows: the windows; all of them count alike, those of a last, smaller batch too.
        batch_size: windows forecast at once; changes speed and memory, not the result. Default 256.

    Returns:
        The errors over all windows.

    Raises:
        TitansError: the forecasts have the wrong shape, or are not finite.
    """
    model = predict if isinstance(predict, nn.Module) else None
    device = None if model is None else next(model.parameters()).device
    with torch.no_grad() if model is None else evaluating(model):
        scores = mean_errors((predict(past.to(device)), future) for past, future in windows.batches(batch_size))
    if not math.isfinite(scores.mse):
        raise TitansError(f"the mean squared error is {scores.mse}: the model's weights are damaged, or it diverged")
    return scores
