"""The forecasting model: what it is built of, what it refuses, and what it writes and reads."""

import pytest
import torch

from titans.models.forecasting import TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig

SMALL = {"context_length": 16, "horizon": 4, "patch_length": 4, "patch_stride": 4, "hidden_size": 8}
MIXED = {"channel_mixing": True, "num_channels": 3}
COVARIATES = {"num_future_covariates": 2, "num_static_covariates": 1}


def model(**fields):
    torch.manual_seed(0)
    return TitansForForecasting(TitansForecastingConfig(**(SMALL | fields))).eval()


def inputs(**changed):
    drawn = torch.Generator().manual_seed(1)
    shapes = {"past_values": (2, 16, 3), "future_covariates": (2, 20, 2), "static_covariates": (2, 1)}
    return {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()} | changed


@pytest.mark.parametrize("fields", [{}, MIXED, MIXED | {"tokens": "variate"}])
def test_kinds_of_tokens_with_covariates_and_quantiles(fields, tmp_path):
    one = model(quantiles=(0.1, 0.5, 0.9), **COVARIATES, **fields)
    output = one.forecast(**inputs(), future_values=torch.ones(2, 4, 3))
    assert output.quantiles.shape == (2, 4, 3, 3)
    assert (output.quantiles.diff(dim=-1) >= 0).all()
    torch.testing.assert_close(output.prediction, output.quantiles[..., 1], rtol=0, atol=0)
    error = 1 - output.quantiles
    level = torch.tensor([0.1, 0.5, 0.9])
    torch.testing.assert_close(output.loss, 2 * torch.where(error > 0, level * error, (level - 1) * error).mean())
    one.save_pretrained(tmp_path)
    again = TitansForForecasting.from_pretrained(tmp_path)
    assert again.config.quantiles == [0.1, 0.5, 0.9]
    torch.testing.assert_close(again.forecast(**inputs()).quantiles, output.quantiles, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["future_covariates", "static_covariates"])
def test_missing_covariates_are_refused(name):
    wrong = inputs()[name]
    wrong[0, -1] = torch.nan  # of the horizon alone: the blocks would not see it
    with pytest.raises(ValueError, match=f"{name} holds NaN"):
        model(**COVARIATES).forecast(**inputs(**{name: wrong}))


@pytest.mark.parametrize(("fields", "message"), [
    ({"quantiles": (0.9, 0.5)}, "must rise"),
    ({"quantiles": "0.5"}, "must rise"),
    ({"quantiles": [None, 0.5]}, "must rise"),
    ({"quantiles": [0.1, 0.9]}, "must hold 0.5"),
    ({"dropout": "high"}, "dropout='high'"),
])  # fmt: skip
def test_settings_that_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        TitansForecastingConfig(**fields)
