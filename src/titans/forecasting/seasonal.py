"""What a series does at each place of its season, day or week: taken off before a model, put back on its forecast."""

from __future__ import annotations

import torch
from torch import Tensor

from titans.errors import TitansError

MIN_SEASONS = 4  # fewer say more about the noise than about the season


class SeasonalProfile:
    """The mean of each channel at each place of the season, less the channel's mean.

    A window shorter than a few seasons shows little of it, and all windows share it; so it need not be forecast again
    and again. Times are counted in steps, from the first step of what the profile was made of.

    Args:
        means: `[season, C]`.
    """

    def __init__(self, means: Tensor) -> None:
        self.means = means

    @classmethod
    def fit(cls, values: Tensor, season: int) -> SeasonalProfile:
        """Measure the profile of a series.

        Args:
            values: `[T, C]`; NaN where a value is missing.
            season: steps of a season.

        Returns:
            The profile; 0 everywhere where the series has fewer than `MIN_SEASONS` seasons, and at a place of the
            season, or in a channel, where nothing was observed.

        Raises:
            TitansError: the season is below 1.
        """
        if season < 1:
            raise TitansError(f"the season is {season} steps, expected at least 1")
        steps, channels = values.shape
        if season == 1 or steps < MIN_SEASONS * season:
            return cls(values.new_zeros(season, channels))
        whole = values[: steps - steps % season].unflatten(0, (-1, season))  # [seasons, season, C]
        means = whole.nanmean(0)
        return cls((means - means.nanmean(0)).nan_to_num())

    def at(self, start: int, steps: int) -> Tensor:
        """Return the profile over some time.

        Args:
            start: the first step.
            steps: how many.

        Returns:
            `[steps, C]`.
        """
        return self.means[torch.arange(start, start + steps, device=self.means.device) % len(self.means)]
