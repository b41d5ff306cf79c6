import pytest
import torch

from titans.errors import TitansError
from titans.forecasting.seasonal import SeasonalProfile

DAY = torch.tensor([[3.0, -1.0], [0.0, 0.0], [-3.0, 1.0]])  # two channels, a season of 3


def test_finds_the_season_of_each_channel(close):
    values = DAY.repeat(5, 1) + torch.tensor([10.0, -2.0])
    profile = SeasonalProfile.fit(torch.cat([values, values[:2]]), 3)  # the incomplete season does not shift the mean
    close(profile.means, DAY, 1e-6)
    close(profile.at(4, 4), DAY[[1, 2, 0, 1]], 1e-6)


def test_missing_values_are_left_out(close):
    values = DAY.repeat(6, 1)
    values[4] = torch.nan
    values[:, 1] = torch.nan
    profile = SeasonalProfile.fit(values, 3)
    close(profile.means, torch.stack([DAY[:, 0], torch.zeros(3)], 1), 1e-6)


def test_of_too_few_seasons_there_is_none():
    assert not SeasonalProfile.fit(DAY.repeat(3, 1), 3).means.any()
    assert SeasonalProfile.fit(DAY.repeat(4, 1), 3).means.any()
    assert not SeasonalProfile.fit(DAY.repeat(4, 1), 1).at(0, 12).any()
    with pytest.raises(TitansError, match="the season is 0 steps"):
        SeasonalProfile.fit(DAY, 0)
