import numpy as np
import pytest
import torch
from torch import nn

from titans.errors import TitansError
from titans.evaluation.forecasting import score_forecasts
from titans.forecasting.windows import Windows

SERIES = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
WINDOWS = Windows(SERIES, 7, 4)  # 50


def half_of_last(past):
    return (past[:, -1:] / 2).expand(-1, 4, -1)


@pytest.mark.parametrize("batch_size", [1, 7, 49, 50, 512])
def test_score_is_the_mean_over_all_windows(batch_size):
    values = SERIES.double().numpy()
    errors = np.array([values[s + 6] / 2 - values[s + 7 : s + 11] for s in range(50)])
    scores = score_forecasts(half_of_last, WINDOWS, batch_size=batch_size)
    assert scores.mse == pytest.approx((errors**2).mean(), rel=1e-12)
    assert scores.mae == pytest.approx(np.abs(errors).mean(), rel=1e-12)
    assert scores.windows == 50


def test_a_last_window_that_is_off_counts():
    """Dropping the last, incomplete batch would hide it."""
    series = torch.zeros(60, 1)
    series[-1] = 10
    scores = score_forecasts(half_of_last, Windows(series, 7, 4), batch_size=32)
    assert scores.mse == pytest.approx(100 / 200)
    assert scores.mae == pytest.approx(10 / 200)


def test_small_errors_are_not_lost_beside_large_ones():
    """In float32, 2^24 + 1 = 2^24: windows counted later would not count at all."""
    series = torch.ones(3000, 1)
    series[1] = 4096  # the first future
    scores = score_forecasts(torch.zeros_like, Windows(series, 1, 1), batch_size=1)
    assert scores.mse == (2**24 + 2998) / 2999


def test_a_module_is_evaluated_without_dropout_and_left_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(21, 12), nn.Unflatten(1, (4, 3)))
    assert score_forecasts(model, WINDOWS) == score_forecasts(model, WINDOWS)
    assert model.training
    model.eval()
    score_forecasts(model, WINDOWS)
    assert not model.training


def test_refuses_what_cannot_be_scored():
    with pytest.raises(TitansError, match=r"forecasts \(50, 1, 3\), expected .* = \(50, 4, 3\)"):
        score_forecasts(lambda past: past[:, -1:], WINDOWS)
    with pytest.raises(TitansError, match="error is nan"):
        score_forecasts(lambda past: half_of_last(past) * float("nan"), WINDOWS)
