import numpy as np
import pytest
import torch

from titans.forecasting.linear import PENALTY, start_linear
from titans.forecasting.windows import Windows
from titans.models.forecasting import TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig

LENGTH, HORIZON = 12, 4
SERIES = torch.randn(80, 2, generator=torch.Generator().manual_seed(0)).cumsum(0)


def make(**fields):
    torch.manual_seed(0)
    sizes = {"context_length": LENGTH, "horizon": HORIZON, "patch_length": 4, "patch_stride": 4}
    return TitansForForecasting(TitansForecastingConfig(**sizes, **fields)).eval()


@pytest.mark.parametrize("normalize", [True, False])
def test_is_ridge_regression(normalize, close):
    model, windows = make(normalize=normalize), Windows(SERIES, LENGTH, HORIZON)
    assert start_linear(model, windows)
    assert not model.linear.weight.requires_grad
    past, future = windows.batch(torch.arange(len(windows)))
    x = past.double().transpose(1, 2).reshape(-1, LENGTH).numpy()
    y = future.double().transpose(1, 2).reshape(-1, HORIZON).numpy()
    mean = x.mean(1, keepdims=True) * normalize
    x, y = x - mean, y - mean
    # least squares with the penalty as further rows
    penalty = np.sqrt(PENALTY * np.square(x).sum() / LENGTH)
    expected = np.linalg.lstsq(
        np.vstack([x, penalty * np.eye(LENGTH)]), np.vstack([y, np.zeros((LENGTH, HORIZON))]), rcond=None
    )[0]
    forecast = model(past).prediction.double().transpose(1, 2).reshape(-1, HORIZON)
    close(forecast, torch.from_numpy(x @ expected + mean), 1e-4)


def test_windows_with_missing_values_are_left_out(close):
    holed = SERIES.clone()
    holed[40, 0] = torch.nan
    whole, model = make(), make()
    start_linear(model, Windows(holed, LENGTH, HORIZON))

    class Whole:
        """The windows of both channels that hold no gap, one by one."""

        def __len__(self):
            return len(self.rows)

        def __init__(self):
            past, future = Windows(holed, LENGTH, HORIZON).batch(torch.arange(65))
            rows = torch.cat([past, future], 1).transpose(1, 2).flatten(0, 1)
            self.rows = rows[rows.isfinite().all(1)].unsqueeze(-1)

        def batch(self, index):
            return self.rows[index, :LENGTH], self.rows[index, LENGTH:]

    start_linear(whole, Whole())
    close(model.linear.weight, whole.linear.weight, 1e-5)


def test_where_there_is_nothing_to_fit_the_model_stays(same):
    model, twin = make(), make()
    assert not start_linear(model, Windows(torch.ones(40, 1), LENGTH, HORIZON))
    same(dict(model.state_dict()), dict(twin.state_dict()))
    assert model.linear.weight.requires_grad
