"""What a series does at each place of its season, day or week, and the forecast that this comes again."""

from __future__ import annotations

import torch
from torch import Tensor

from titans.errors import TitansError

MIN_SEASONS = 4  # fewer say more about the noise than about the season
MIN_F = 3.0  # the variance of the places' means over what chance alone would make of it (an F statistic)


def seasonal_profile(values: Tensor, season: int) -> Tensor:
    """Measure the mean of each channel at each place of the season, less the channel's mean.

    A window shorter than a few seasons shows little of it, and all windows share it; so it need not be forecast again
    and again: it is taken off before a model, and put back on its forecast.

    Args:
        values: `[T, C]`; NaN where a value is missing.
        season: steps of a season.

    Returns:
        The profile `[season, C]`; 0 where the series has fewer than `MIN_SEASONS` seasons, in a channel whose places
        differ no more than chance would have it, and at a place where nothing was observed.

    Raises:
        TitansError: the season is below 1.
    """
    if season < 1:
        raise TitansError(f"the season is {season} steps, expected at least 1")
    steps, channels = values.shape
    if season == 1 or steps < MIN_SEASONS * season:
        return values.new_zeros(season, channels)
    whole = values[: steps - steps % season].unflatten(0, (-1, season))  # [seasons, season, C]
    means = whole.nanmean(0)
    profile = means - means.nanmean(0)  # [season, C]
    chance = (whole - means).square().nanmean((0, 1)) / len(whole)  # what noise alone makes of a mean's variance
    certain = profile.square().nanmean(0) > MIN_F * chance
    return torch.where(certain, profile, 0.0).nan_to_num()


def repeat_season(season: Tensor, start: int, steps: int) -> Tensor:
    """Repeat a season `[..., W, C]` for some steps `[..., steps, C]` from the step `start` on; step 0 begins one."""
    places = torch.arange(start, start + steps, device=season.device) % season.shape[-2]
    return season.index_select(-2, places)


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
    return repeat_season(past[:, -season:], 0, horizon)
