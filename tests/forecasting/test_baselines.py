import numpy as np
import pytest
import torch

from titans.errors import TitansError
from titans.evaluation.forecasting import score_forecasts
from titans.evaluation.forecasting_models import DLinear
from titans.forecasting.seasonal import seasonal_naive
from titans.forecasting.windows import Windows

PAST = torch.randn(5, 30, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("season", "horizon"), [(1, 3), (7, 4), (7, 7), (7, 20), (30, 61)])
def test_seasonal_naive(season, horizon, same):
    forecast = seasonal_naive(PAST, horizon, season)
    assert forecast.shape == (5, horizon, 2)
    for step in range(horizon):
        same(forecast[:, step], PAST[:, 30 - season + step % season])


def test_seasonal_naive_knows_a_season():
    series = torch.sin(torch.arange(200) * 2 * torch.pi / 12)[:, None]
    windows = Windows(series, 30, 17)
    assert score_forecasts(lambda past: seasonal_naive(past, 17, 12), windows).mse < 1e-10
    assert score_forecasts(lambda past: seasonal_naive(past, 17, 11), windows).mse > 0.05


def test_seasonal_naive_refuses():
    with pytest.raises(TitansError, match="season of 31 steps needs a look-back as long, but it is 30"):
        seasonal_naive(PAST, 4, 31)
    with pytest.raises(TitansError, match="season of 0 steps"):
        seasonal_naive(PAST, 4, 0)


@pytest.mark.parametrize("kernel", [1, 5, 25])
def test_dlinear_by_hand(kernel):
    torch.manual_seed(0)
    model = DLinear(30, 4, kernel).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    trend_map, trend_bias, season_map, season_bias = (p.detach().numpy() for p in model.parameters())
    past = PAST.double()
    forecast = model(past).detach().numpy()
    for row, channel in np.ndindex(5, 2):
        x = past[row, :, channel].numpy()
        near = [np.clip(np.arange(t - kernel // 2, t + kernel // 2 + 1), 0, 29) for t in range(30)]
        trend = np.array([x[steps].mean() for steps in near])
        expected = trend_map @ trend + trend_bias + season_map @ (x - trend) + season_bias
        np.testing.assert_allclose(forecast[row, :, channel], expected, rtol=1e-10)


def test_dlinear_begins_as_the_mean(close):
    model = DLinear(30, 4)
    assert sum(p.numel() for p in model.parameters()) == 2 * (30 * 4 + 4)
    for linear in (model.trend, model.season):
        torch.nn.init.zeros_(linear.bias)
    close(model(PAST), PAST.mean(1, keepdim=True).expand(-1, 4, -1), 1e-6)


def test_dlinear_refuses_an_even_kernel():
    with pytest.raises(TitansError, match="over 24 steps, expected an odd"):
        DLinear(30, 4, 24)
