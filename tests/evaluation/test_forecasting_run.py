"""Runs of the protocol: each is done once and kept, its numbers are those of training and scoring by hand."""

import dataclasses
import json
import math

import pandas as pd
import pytest
import torch

from titans.errors import TitansError
from titans.evaluation import forecasting_run
from titans.evaluation.forecasting import score_forecasts
from titans.evaluation.forecasting_models import DLINEAR_TRAINING, DLinear, default_config
from titans.evaluation.forecasting_run import Evaluation, load
from titans.forecasting.seasonal import seasonal_naive
from titans.forecasting.training import fit_windows
from titans.models.forecasting import TitansForForecasting

SMALL = {"context_length": 24, "horizons": [4, 8]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """400 hours of two channels with a day in them."""
    hours = torch.arange(400)
    noise = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    values = torch.sin(hours * math.tau / 24).unsqueeze(1) * torch.tensor([1.0, 5.0]) + 0.1 * noise
    frame = pd.DataFrame(values.numpy(), columns=["a", "b"])
    frame.insert(0, "date", pd.date_range("2020-01-01", periods=400, freq="h"))
    path = tmp_path_factory.mktemp("data") / "small.csv.gz"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def evaluation(dataset):
    return load(dataset, "custom", **SMALL)


@pytest.fixture
def trainings(monkeypatch):
    """The trainings that were begun."""
    begun = []

    def counted(model, *args, **kwargs):
        begun.append(kwargs)
        return fit_windows(model, *args, **kwargs)

    monkeypatch.setattr(forecasting_run, "fit_windows", counted)
    return begun


def kept_in(folder):
    """The results in a folder, by name."""
    lines = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return {line["key"]: line["result"] for line in lines}


def test_load(evaluation):
    assert evaluation.benchmark.name == "small"
    assert evaluation.season == 24
    assert evaluation.notes == ()
    assert evaluation.models() == ("lmm", "dlinear", "repeat", "seasonal-naive")
    assert dataclasses.replace(evaluation, season=25).models() == ("lmm", "dlinear", "repeat")
    assert dataclasses.replace(evaluation, season=1).models() == ("lmm", "dlinear", "repeat")


def test_numbers_are_those_of_training_and_scoring_by_hand(evaluation, tmp_path):
    result = evaluation.measure(tmp_path, ["seasonal-naive", "dlinear"], 2, epochs=2)
    windows = evaluation.benchmark.windows
    naive = score_forecasts(lambda past: seasonal_naive(past, 8, 24), windows("test", 8))
    by_name = {(m.model, m.horizon, m.seed): m for m in result.measurements}
    assert by_name["seasonal-naive", 8, None] == forecasting_run.Measurement("seasonal-naive", 8, None, *naive)
    torch.manual_seed(1)
    model = DLinear(24, 8)
    settings = DLINEAR_TRAINING | {"epochs": 2}
    history = fit_windows(model, windows("train", 8), windows("validation", 8), seed=1, **settings)
    assert by_name["dlinear", 8, 1] == forecasting_run.Measurement(
        "dlinear", 8, 1, *score_forecasts(model, windows("test", 8))
    )
    kept = kept_in(tmp_path)["dlinear, horizon 8, seed 1"]
    assert kept["validation_mse"] == history.validation_mse
    assert kept["windows"] == 80 - 8 + 1
    assert json.loads((tmp_path / "forecasting.json").read_text())["measurements"] == [
        dataclasses.asdict(m) for m in result.measurements
    ]
    assert "look-back 24; 2 seeds; epochs 2" in result.describe()


@pytest.mark.parametrize("variant", ["lmm", "none", "gla"])
def test_titans_and_twins(evaluation, tmp_path, variant):
    one = dataclasses.replace(evaluation, benchmark=dataclasses.replace(evaluation.benchmark, horizons=(4,)))
    before = torch.random.get_rng_state()
    result = one.measure(tmp_path / "a", [variant], 1, epochs=2, learning_rate=0.01)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert result.mean(variant, 4).mse < 0.3  # nothing but zeros has 1
    again = one.measure(tmp_path / "b", [variant], 1, epochs=2, learning_rate=0.01)
    assert again.measurements == result.measurements
    kept = kept_in(tmp_path / "a")[f"{variant}, horizon 4, seed 0"]
    model = TitansForForecasting(default_config(24, 4, 2, variant=variant))
    assert kept["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_gaps_are_filled_and_said(dataset, tmp_path):
    lines = pd.read_csv(dataset).to_csv(index=False).splitlines()
    path = tmp_path / "gaps.csv"
    path.write_text("\n".join([*lines[:11], *lines[12:]]))
    whole, gaps = (load(one, "custom", **SMALL) for one in (dataset, path))
    filled = (gaps.benchmark.values[9] + gaps.benchmark.values[11]) / 2
    assert torch.allclose(gaps.benchmark.values[10], filled, atol=1e-5)
    assert gaps.notes[-1].startswith("missing values were filled on a line")
    assert not whole.notes


def test_runs_are_done_once(evaluation, tmp_path, trainings):
    first = evaluation.measure(tmp_path, ["dlinear"], 1, epochs=1)
    assert len(trainings) == 2
    assert evaluation.measure(tmp_path, ["dlinear"], 1, epochs=1) == first
    assert len(trainings) == 2
    more = evaluation.measure(tmp_path, ["repeat", "dlinear"], 2, epochs=1)
    assert len(trainings) == 4
    assert set(first.measurements) < set(more.measurements)
    trained = {f"dlinear, horizon {h}, seed {s}" for h in (4, 8) for s in (0, 1)}
    assert kept_in(tmp_path).keys() == trained | {"repeat, horizon 4", "repeat, horizon 8"}


def test_other_settings_are_refused(evaluation, tmp_path, trainings):
    evaluation.measure(tmp_path, ["repeat"], epochs=1)
    before = (tmp_path / "forecasting.json").read_text()
    for changed in ({"epochs": 2}, {"epochs": 1, "learning_rate": 1.0}, {"epochs": 1, "minutes": 1.0}, {}):
        with pytest.raises(TitansError, match="holds results under other settings"):
            evaluation.measure(tmp_path, ["dlinear"], **changed)
    other = dataclasses.replace(evaluation, benchmark=dataclasses.replace(evaluation.benchmark, name="other"))
    with pytest.raises(TitansError, match=r"other settings \(dataset;"):
        other.measure(tmp_path, ["dlinear"], epochs=1)
    assert not trainings
    assert (tmp_path / "forecasting.json").read_text() == before


def test_interruption_keeps_what_is_done(evaluation, tmp_path, monkeypatch):
    def interrupted(share, line):
        if "horizon 8" in line and share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluation.measure(tmp_path, ["dlinear"], 1, epochs=1, progress=interrupted)
    assert list(kept_in(tmp_path)) == ["dlinear, horizon 4, seed 0"]
    assert not (tmp_path / "forecasting.json").exists()
    shares = []
    evaluation.measure(tmp_path, ["dlinear"], 1, epochs=1, progress=lambda share, line: shares.append(share))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.5, 1.0)


def test_the_time_limit_is_shared_and_named(evaluation, tmp_path, trainings):
    evaluation.measure(tmp_path / "shared", ["dlinear"], 1, epochs=1000, minutes=0.01)
    assert [0 < kwargs["seconds"] <= 0.61 for kwargs in trainings] == [True, True]
    assert trainings[0]["seconds"] < 0.31
    result = evaluation.measure(tmp_path / "short", ["dlinear"], 1, epochs=1000, minutes=1e-6)  # a step each
    assert "the time limit ended 2 of 2 trainings" in result.deviations


def test_notes_on_the_data_are_deviations(evaluation, tmp_path):
    noted = Evaluation(evaluation.benchmark, 24, ("3 values were missing",))
    assert noted.measure(tmp_path, ["repeat"]).deviations[-1] == "3 values were missing"


@pytest.mark.parametrize(
    ("models", "changes", "sentence"),
    [
        (["lmn"], {}, '"lmn" is no model: expected different ones of lmm, mac'),
        ([], {}, "the models are none"),
        (["repeat", "repeat"], {}, "the models are repeat, repeat"),
        (["repeat"], {"seeds": 0}, "there are 0 seeds"),
        (["repeat"], {"learning_rate": math.nan}, "learning rate is nan"),
        (["repeat"], {"minutes": 0.0}, "minutes is 0.0"),
    ],
)
def test_refusals(evaluation, tmp_path, models, changes, sentence):
    with pytest.raises(TitansError, match=sentence):
        evaluation.measure(tmp_path / "out", models, **changes)
    assert not (tmp_path / "out").exists()


def test_a_season_longer_than_the_look_back_is_refused(evaluation, tmp_path):
    with pytest.raises(TitansError, match="a season of 144 steps, but it is 24"):
        dataclasses.replace(evaluation, season=144).measure(tmp_path, ["seasonal-naive"])


def test_damaged_files_are_refused(evaluation, tmp_path):
    evaluation.measure(tmp_path, ["repeat"])
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"mse"', b'"mess"', 1))
    with pytest.raises(TitansError, match="line 1 is damaged: delete that line, and it will be done again"):
        evaluation.measure(tmp_path, ["repeat"])
    path.write_bytes(path.read_bytes().partition(b"\n")[2])
    assert len(evaluation.measure(tmp_path, ["repeat"]).measurements) == 2
    (tmp_path / "settings.json").write_text("]")
    with pytest.raises(TitansError, match="use another folder"):
        evaluation.measure(tmp_path, ["repeat"])
    (tmp_path / "old" / "runs").mkdir(parents=True)
    with pytest.raises(TitansError, match="old holds runs of an older version: use another folder"):
        evaluation.measure(tmp_path / "old", ["repeat"])


def test_divergence_names_the_run(evaluation, tmp_path):
    with pytest.raises(TitansError, match=r"^dlinear, horizon 4, seed 0: training diverged"):
        evaluation.measure(tmp_path, ["dlinear"], 1, learning_rate=1e30)


def test_divergence_of_ours_is_a_sentence_too(evaluation, tmp_path):
    with pytest.raises(TitansError, match=r"^lmm, horizon 4, seed 0: training diverged .* lower the learning rate"):
        evaluation.measure(tmp_path, ["lmm"], 1, learning_rate=1e9, epochs=1)
    for setting in ("learning_rate", "minutes"):
        with pytest.raises(TitansError, match="is inf, expected more than 0, and finite"):
            evaluation.measure(tmp_path / "x", ["repeat"], 1, **{setting: math.inf})
