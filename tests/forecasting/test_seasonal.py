import pytest
import torch

from titans.errors import TitansError
from titans.forecasting.seasonal import repeat_season, seasonal_profile

DAY = torch.tensor([[3.0, -1.0], [0.0, 0.0], [-3.0, 1.0]])  # two channels, a season of 3


def test_finds_the_season_of_each_channel(close):
    values = DAY.repeat(5, 1) + torch.tensor([10.0, -2.0])
    profile = seasonal_profile(torch.cat([values, values[:2]]), 3)  # the incomplete season does not shift the mean
    close(profile, DAY, 1e-6)
    close(repeat_season(profile, 4, 4), DAY[[1, 2, 0, 1]], 1e-6)


def test_missing_values_are_left_out(close):
    values = DAY.repeat(6, 1)
    values[4] = torch.nan
    values[:, 1] = torch.nan
    close(seasonal_profile(values, 3), torch.stack([DAY[:, 0], torch.zeros(3)], 1), 1e-6)


def test_of_too_few_seasons_there_is_none():
    assert not seasonal_profile(DAY.repeat(3, 1), 3).any()
    assert seasonal_profile(DAY.repeat(4, 1), 3).any()
    assert not repeat_season(seasonal_profile(DAY.repeat(4, 1), 1), 0, 12).any()
    with pytest.raises(TitansError, match="the season is 0 steps"):
        seasonal_profile(DAY, 0)


def test_what_chance_would_make_is_no_season(close):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(30 * 12, 2, generator=generator)
    seasonal = torch.sin(torch.arange(360) * 2 * torch.pi / 12)
    values = noise + torch.stack([torch.zeros(360), seasonal], 1)
    means = seasonal_profile(values, 12)
    assert not means[:, 0].any()
    close(means[:, 1], (values[:, 1].view(30, 12) - values[:, 1].mean()).mean(0), 1e-5)
