import dataclasses
import json

import pytest

from titans.evaluation.forecasting_result import ForecastingResult, Measurement


@pytest.fixture
def result():
    scores = {  # model, horizon: (mse, mae) of each seed
        ("ours", 192): [(0.5, 0.6), (0.7, 0.6)],
        ("ours", 96): [(0.2, 0.3), (0.4, 0.5)],
        ("repeat", 96): [(1.0, 0.9)],
    }
    measurements = tuple(
        Measurement(model, horizon, None if model == "repeat" else seed, *errors, 2881 - horizon)
        for (model, horizon), found in scores.items()
        for seed, errors in enumerate(found)
    )
    return ForecastingResult("ETTh1", "ett", 96, "ETTh1, by the book", measurements)


def test_means_over_seeds_and_horizons(result):
    assert result.models == ("ours", "repeat")
    assert result.horizons == (96, 192)
    mean = result.mean("ours", 96)
    assert (mean.mse, mean.mae, mean.seeds) == pytest.approx((0.3, 0.4, 2))
    assert (mean.mse_deviation, mean.mae_deviation) == pytest.approx((0.02**0.5, 0.02**0.5))
    mean = result.mean("ours")
    assert (mean.mse, mean.mae, mean.seeds) == pytest.approx((0.45, 0.5, 2))
    assert mean.mse_deviation == pytest.approx(0.02**0.5)  # of 0.35 and 0.55
    assert mean.mae_deviation == pytest.approx(0.005**0.5)  # of 0.45 and 0.55
    assert result.mean("repeat", 96).mse_deviation == 0


def test_no_mean_over_fewer_horizons_than_others_have(result):
    assert result.mean("repeat", 192) is None
    assert result.mean("repeat") is None


def test_each_horizon_has_the_same_weight(result):
    more = Measurement("ours", 96, 2, 0.3, 0.4, 2785)  # a third seed at 96 only
    mean = dataclasses.replace(result, measurements=(*result.measurements, more)).mean("ours")
    assert (mean.mse, mean.mae, mean.seeds) == pytest.approx((0.45, 0.5, 2))


def test_describes_deviations(result):
    assert result.describe() == "ETTh1, by the book; deviations: none"
    result = dataclasses.replace(result, deviations=("look-back 336", "one seed"))
    assert result.describe() == "ETTh1, by the book; deviations: look-back 336; one seed"


def test_saves_numbers_and_a_plot(result, tmp_path):
    result.save(tmp_path / "new")
    result.save(tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"forecasting.json", "forecasting.png"}
    saved = json.loads((tmp_path / "new" / "forecasting.json").read_text())
    assert tuple(Measurement(**m) for m in saved["measurements"]) == result.measurements
    assert saved["means"]["ours"]["96"] == dataclasses.asdict(result.mean("ours", 96))
    assert saved["means"]["ours"]["all horizons"]["mse"] == pytest.approx(0.45)
    assert saved["means"]["repeat"]["all horizons"] is None
    assert saved["description"].endswith("deviations: none")
    assert (tmp_path / "new" / "forecasting.png").read_bytes().startswith(b"\x89PNG")


def test_plots_a_single_horizon(result, tmp_path):
    single = tuple(m for m in result.measurements if m.horizon == 96)
    dataclasses.replace(result, measurements=single).save(tmp_path)
    assert (tmp_path / "forecasting.png").stat().st_size > 5000
