"""What a forecast is compared with: the last season, or the last value, again."""

from __future__ import annotations

import torch
from torch import Tensor

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
