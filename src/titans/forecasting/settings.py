"""The default forecasting model and how it is trained: the one place of these numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

from titans.forecasting.training import Decay
from titans.models.forecasting_configuration import TitansForecastingConfig

MODEL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "patch_length": 16,
    "patch_stride": 16,
    "sliding_window": 16,
    "segment_length": 16,
    "dropout": 0.2,
    "loss": "mae",
}

IN_MINUTES: dict[str, Any] = {"train_windows": 1, "epochs": 6, "batch_size": 64, "patch_length": 16, "patch_stride": 16}
"""How `titans forecast` sets a `TitansForecaster`, which has two minutes for 10,000 rows of 7 channels on 2 cores."""


@dataclasses.dataclass(frozen=True)
class Training:
    """How a model is trained: what `titans.forecasting.training.fit` takes.

    Args:
        epochs: passes over the training windows.
        batch_size: windows of one step.
        learning_rate: at the start.
        decay: how it falls.
        patience: epochs without a better validation error before training ends.
        weight_decay: decoupled.
        clip: largest norm of the gradient; None: any.
        epoch_steps: most steps of an epoch; None: any.
    """

    epochs: int = 5
    batch_size: int = 64
    learning_rate: float = 1e-3
    decay: Decay = "cosine"
    patience: int = 3
    weight_decay: float = 0.1
    clip: float | None = 1.0
    epoch_steps: int | None = 70


def default_training() -> Training:
    """How a Titans model, or one of its twins, is trained."""
    return Training()


def dlinear_training() -> Training:
    """How DLinear is trained: a usual setting, that which the protocol is checked with."""
    return Training(10, 32, 1e-3, "halve", weight_decay=0.0, clip=None, epoch_steps=None)


def default_config(context_length: int, horizon: int, channels: int, **fields: Any) -> TitansForecastingConfig:
    """Make the configuration of the default model.

    Args:
        context_length: look-back window, in time steps; patches are no longer than it.
        horizon: time steps to forecast.
        channels: channels of a series.
        **fields: fields of `TitansForecastingConfig` to set otherwise.

    Returns:
        The configuration.

    Raises:
        ValueError: a field is out of range.
    """
    patches = {name: min(MODEL[name], context_length) for name in ("patch_length", "patch_stride")}
    sizes = {"context_length": context_length, "horizon": horizon, "num_channels": channels}
    return TitansForecastingConfig(**(MODEL | patches | sizes | fields))
