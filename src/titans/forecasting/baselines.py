"""What a forecast is compared with: the last value, the last season, and DLinear."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titans.errors import TitansError


def seasonal_naive(past: Tensor, horizon: int, season: int) -> Tensor:
    """Forecast that the last season comes again.

    Args:
        past: `[B, L, C]`.
        horizon: steps H to forecast.
        season: steps of a season, 24 for a day of hours; 1 repeats the last value.

    Returns:
        `[B, H, C]`.

    Raises:
        TitansError: the past is shorter than a season, or the season below 1.
    """
    if not 1 <= season <= past.shape[1]:
        raise TitansError(f"a season of {season} steps needs a look-back as long, but it is {past.shape[1]}")
    return past[:, -season:][:, torch.arange(horizon, device=past.device) % season]


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
        """Forecast.

        Args:
            past: `[B, L, C]`.

        Returns:
            `[B, H, C]`.
        """
        series = past.transpose(1, 2)  # [B, C, L]
        padded = F.pad(series, (self.kernel // 2, self.kernel // 2), mode="replicate")
        trend = F.avg_pool1d(padded, self.kernel, stride=1)
        forecast: Tensor = self.trend(trend) + self.season(series - trend)
        return forecast.transpose(1, 2)
