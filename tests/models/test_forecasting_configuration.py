"""Configurations of forecasting models: what cannot work is refused in one sentence; the rest survives a file."""

import json
import re

import pytest

from titans.layers import MemoryConfig
from titans.models.forecasting_configuration import TitansForecastingConfig


@pytest.mark.parametrize(("fields", "message"), [
    *[({name: value}, f"{name}={value!r} must be a whole number of at least 1") for value in (0, -3, 2.0, True, "8")
      for name in ("context_length", "horizon", "num_channels", "patch_length", "patch_stride")],
    *[({name: value}, f"{name}={value!r} must be a whole number of at least 0") for value in (-1, 1.0, False, None)
      for name in ("num_future_covariates", "num_static_covariates")],
    *[({"dropout": value}, f"dropout={value!r} must be a number of at least 0 and below 1")
      for value in (-0.1, 1, 1.0, float("nan"), float("inf"), "0.1", None)],
    *[({name: value}, f"{name}={value!r} must be True or False") for value in ("no", 1)
      for name in ("normalize", "channel_mixing")],
    ({"tokens": "points"}, "tokens='points' is unknown: choose one of patch, variate"),
    ({"loss": "rmse"}, "loss='rmse' is unknown: choose one of mse, mae, huber"),
    ({"variant": "rnn"}, "variant='rnn' is unknown"),
    ({"hidden_size": 31}, "hidden_size=31 is not a multiple of num_attention_heads=2"),
    ({"tokens": "variate", "channel_mixing": False}, "tokens='variate' mixes channels: leave channel_mixing unset"),
    ({"patch_length": 97}, "patch_length=97 is longer than the window, context_length=96"),
    ({"patch_stride": 17}, "patch_stride=17 is longer than a patch, patch_length=16"),
    *[({"quantiles": levels}, f"quantiles={levels!r} must rise from above 0 to below 1") for levels in (
        [0.5, 0.1], [0.5, 0.5], [0.0, 0.5], [0.5, 1.0], [-0.1, 0.5], [0.5, float("nan")])],
    *[({"quantiles": levels}, f"quantiles={levels!r} must be a list of numbers between 0 and 1") for levels in (
        0.5, "0.5", ["0.5"], [0.5, None], [0.5, 1])],
    *[({"quantiles": levels}, f"quantiles={levels!r} must hold 0.5") for levels in ([], [0.1, 0.9])],
])  # fmt: skip
def test_fields_that_cannot_work(fields, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as caught:
        TitansForecastingConfig(**fields)
    assert "\n" not in str(caught.value)


def test_defaults():
    config = TitansForecastingConfig()
    assert config.model_type == "titans_forecasting"
    names = TitansForecastingConfig.__annotations__.keys() - {"default_variant"}
    found = {name: getattr(config, name) for name in names}
    assert found == {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_persistent_tokens": 4, "memory": MemoryConfig(num_heads=2, chunk_size=16, expansion=2),
        "context_length": 96, "horizon": 96, "num_channels": 1, "tokens": "patch", "channel_mixing": False,
        "patch_length": 16, "patch_stride": 8, "normalize": True, "loss": "mse", "quantiles": None,
        "num_future_covariates": 0,
        "num_static_covariates": 0, "dropout": 0.0,
    }  # fmt: skip
    assert (config.variant, config.intermediate_size) == ("lmm", 96)
    assert TitansForecastingConfig(tokens="variate").channel_mixing is True
    assert TitansForecastingConfig(tokens="patch", channel_mixing=True).channel_mixing is True


@pytest.mark.parametrize(("fields", "tokens"), [
    ({}, 11),
    ({"context_length": 16}, 1),
    ({"context_length": 17}, 2),
    ({"context_length": 24}, 2),
    ({"context_length": 25}, 3),
    ({"patch_length": 5, "patch_stride": 5}, 20),
    ({"patch_length": 1, "patch_stride": 1}, 96),
    ({"tokens": "variate", "num_channels": 7}, 7),
    ({"tokens": "variate", "context_length": 8}, 1),  # shorter than a patch, of which there is none
])  # fmt: skip
def test_tokens_of_a_window(fields, tokens):
    assert TitansForecastingConfig(**fields).num_tokens == tokens


@pytest.mark.parametrize("fields", [
    {},
    {"variant": "mac", "tokens": "variate", "num_channels": 3, "loss": "huber", "dropout": 0.1},
    {"channel_mixing": True, "num_channels": 2, "normalize": False, "quantiles": (0.1, 0.5, 0.9)},
    {"num_future_covariates": 2, "num_static_covariates": 3, "context_length": 40, "horizon": 7, "patch_stride": 3},
])  # fmt: skip
def test_round_trip(fields, tmp_path):
    config = TitansForecastingConfig(**fields)
    config.save_pretrained(tmp_path)
    as_json = json.loads((tmp_path / "config.json").read_text())
    for other in (TitansForecastingConfig.from_pretrained(tmp_path), TitansForecastingConfig(**as_json)):
        for name in config.hints():
            assert getattr(other, name) == getattr(config, name), name
    assert all(as_json[name] == (list(value) if name == "quantiles" else value) for name, value in fields.items())
