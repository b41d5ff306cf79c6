"""What is trained by the protocol, and how: the one place of these numbers."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from titans.errors import TitansError
from titans.models.forecasting import TitansForForecasting
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


TITANS_TRAINING: dict[str, Any] = {
    "epochs": 5,
    "batch_size": 64,
    "learning_rate": 1e-3,
    "decay": "cosine",
    "patience": 3,
    "weight_decay": 0.1,
    "clip": 1.0,
    "epoch_steps": 70,
}
"""How a Titans model, or one of its twins, is trained: what `titans.forecasting.training.fit_windows` takes."""
DLINEAR_TRAINING: dict[str, Any] = {
    "epochs": 10,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "decay": "halve",
    "patience": 3,
    "weight_decay": 0.0,
    "clip": None,
    "epoch_steps": None,
}
"""How DLinear is trained: a usual setting, that which the protocol is checked with."""


def default_config(context_length: int, horizon: int, channels: int, **fields: Any) -> TitansForecastingConfig:
    """The configuration of the default model, but for `fields`; patches are no longer than the look-back."""
    patches = {name: min(MODEL[name], context_length) for name in ("patch_length", "patch_stride")}
    sizes = {"context_length": context_length, "horizon": horizon, "num_channels": channels}
    return TitansForecastingConfig(**(MODEL | patches | sizes | fields))


class PointForecaster(nn.Module):
    """A forecasting model as training and scoring want it: from pasts to point forecasts.

    Args:
        context_length: look-back L.
        horizon: steps H to forecast.
        channels: channels C.
        variant: of the model.
    """

    def __init__(self, context_length: int, horizon: int, channels: int, variant: str) -> None:
        super().__init__()
        self.model = TitansForForecasting(default_config(context_length, horizon, channels, variant=variant))

    def forward(self, past: Tensor) -> Tensor:
        """Forecast: `[B, H, C]` of pasts `[B, L, C]`."""
        prediction: Tensor = self.model(past, use_cache=False).prediction
        return prediction

    @staticmethod
    def step(wrapper: PointForecaster, past: Tensor, future: Tensor) -> tuple[Tensor, Tensor]:
        """Forecast, with the loss of the model's configuration."""
        output = wrapper.model(past, future_values=future, use_cache=False)
        return output.prediction, output.loss


class DLinear(nn.Module):
    """The linear model of Zeng et al. (2023), "Are Transformers effective for time series forecasting?".

    A moving average is the trend; what is left is the season. Each has one linear map from look-back to horizon,
    shared by all channels, and the forecast is their sum. As in the authors' code, both begin as the mean of the
    look-back.

    Args:
        context_length: look-back L.
        horizon: steps H to forecast.
        kernel: steps of the moving average, odd; beyond the ends the series goes on with its end values. Default 25.

    Raises:
        TitansError: the kernel is even.
    """

    def __init__(self, context_length: int, horizon: int, kernel: int = 25) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise TitansError(f"the moving average is over {kernel} steps, expected an odd number: it has a middle")
        self.kernel = kernel
        self.trend = nn.Linear(context_length, horizon)
        self.season = nn.Linear(context_length, horizon)
        for linear in (self.trend, self.season):
            nn.init.constant_(linear.weight, 1 / context_length)

    def forward(self, past: Tensor) -> Tensor:
        """Forecast `[B, H, C]` from pasts `[B, L, C]`."""
        series = past.transpose(1, 2)  # [B, C, L]
        padded = F.pad(series, (self.kernel // 2, self.kernel // 2), mode="replicate")
        trend = F.avg_pool1d(padded, self.kernel, stride=1)
        forecast: Tensor = self.trend(trend) + self.season(series - trend)
        return forecast.transpose(1, 2)
