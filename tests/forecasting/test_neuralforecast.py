"""Inside NeuralForecast: forecasts, intervals, covariates, missing values, saving. Few fits: each takes seconds."""

import importlib.util
import inspect
import logging
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from titans.errors import TitansError
from titans.models.forecasting import TitansForForecasting

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of neuralforecast's and ray's own imports
    from neuralforecast import NeuralForecast
    from neuralforecast.losses.pytorch import MAE, DistributionLoss, MQLoss
    from neuralforecast.models import PatchTST

    from titans.forecasting.neuralforecast import Titans

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning"),  # Lightning's use of torch
    pytest.mark.filterwarnings(
        "ignore:The given NumPy array is not writable:UserWarning:neuralforecast._serialization"
    ),
]
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "neuralforecast.md"
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
H, L, LENGTH = 6, 24, 150
SIZES = {"h": H, "input_size": L, "hidden_size": 16, "patch_len": 6, "stride": 6}
STEPS = {"max_steps": 40, "val_check_steps": 40, "learning_rate": 1e-2, "windows_batch_size": 64}


@pytest.fixture(autouse=True)
def quiet():
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if "lightning" in name]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def make(**arguments):
    return Titans(**{**SIZES, **STEPS, **QUIET, **arguments})


def frame(noise=0.1):
    """Two clean seasonal series on very different levels, and a column that decides nothing."""
    rng, t = np.random.default_rng(0), np.arange(LENGTH)
    return pd.concat(
        pd.DataFrame(
            {"unique_id": name, "ds": t, "y": level + 3 * np.sin(t * np.pi / 6) + noise * rng.normal(size=LENGTH)}
        )
        for name, level in (("a", 0.0), ("b", 500.0))
    )


def windows(model, rows=5, seed=0, **more):
    generator = torch.Generator().manual_seed(seed)
    sizes = {"futr_exog": (L + H, model.futr_exog_size), "hist_exog": (L, model.hist_exog_size)}
    batch = {name: torch.randn(rows, *size, generator=generator) if size[-1] else None for name, size in sizes.items()}
    static = torch.randn(rows, model.stat_exog_size, generator=generator) if model.stat_exog_size else None
    batch |= {"insample_y": 50 + 2 * torch.randn(rows, L, 1, generator=generator), "stat_exog": static}
    return {**batch, "insample_mask": torch.ones(rows, L, 1), **more}


@pytest.fixture(scope="module")
def fitted():
    """A quantile forecaster of the two seasonal series, without their last horizon."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*", FutureWarning)
        nf = NeuralForecast(models=[make(loss=MQLoss(level=[80, 50]))], freq=1)
        nf.fit(frame()[lambda df: df.ds < LENGTH - H])
    return nf


def test_learns_a_season_and_gives_ordered_intervals_that_cover(fitted):
    df = frame()
    forecast, truth = fitted.predict(), df[df.ds >= LENGTH - H]
    assert list(forecast.unique_id) == list(truth.unique_id)
    assert list(forecast.ds) == list(truth.ds)
    names = ["Titans-lo-80", "Titans-lo-50", "Titans-median", "Titans-hi-50", "Titans-hi-80"]
    levels = forecast[names].to_numpy()
    assert (np.diff(levels, axis=1) >= 0).all()
    last = df[df.ds == LENGTH - H - 1].y.to_numpy().repeat(H)
    error, naive = np.abs(levels[:, 2] - truth.y), np.abs(last - truth.y)
    assert error.mean() < 0.15 * naive.mean()
    inside = (levels[:, 0] <= truth.y) & (truth.y <= levels[:, -1])
    assert inside.mean() >= 0.6
    assert (levels[:, -1] - levels[:, 0]).mean() < naive.mean()  # not by being wide


def test_saved_and_loaded_is_the_same(fitted, tmp_path):
    fitted.save(str(tmp_path))
    loaded = NeuralForecast.load(str(tmp_path))
    assert type(loaded.models[0]) is Titans
    pd.testing.assert_frame_equal(loaded.predict(), fitted.predict())


def test_network_inside_is_the_forecasting_model(fitted, tmp_path, same):
    model = fitted.models[0]
    model.core.save_pretrained(tmp_path)
    core = TitansForForecasting.from_pretrained(tmp_path)
    assert core.config.quantiles == [0.1, 0.25, 0.5, 0.75, 0.9]
    past = frame().y.to_numpy().reshape(2, LENGTH)[:, -H - L : -H]
    expected = core.forecast(torch.tensor(past, dtype=torch.float32).unsqueeze(-1)).quantiles[:, :, 0]
    names = ["Titans-lo-80", "Titans-lo-50", "Titans-median", "Titans-hi-50", "Titans-hi-80"]
    forecast = torch.tensor(fitted.predict()[names].to_numpy()).view(2, H, 5)
    torch.testing.assert_close(forecast.float(), expected, rtol=1e-5, atol=1e-4)
    model.eval()
    batch = windows(model)
    same(model(batch), core(batch["insample_y"]).quantiles[:, :, 0, [2, 0, 1, 3, 4]])  # the loss's order: median first


def sales():
    """A column that nobody can guess from the past, and what it decides."""
    t, rng = np.arange(200), np.random.default_rng(0)
    sale = rng.integers(0, 2, len(t)) * 2.0 - 1
    return pd.DataFrame(
        {"unique_id": "shop", "ds": t, "y": 20 + 4 * sale + 0.1 * rng.normal(size=len(t)), "sale": sale}
    )


def test_a_future_column_that_decides_is_used_in_cross_validation():
    model = make(futr_exog_list=["sale"], loss=DistributionLoss("Normal", level=[80]), max_steps=60, val_check_steps=60)
    scores = NeuralForecast(models=[model], freq=1).cross_validation(sales(), n_windows=2, step_size=H)
    assert list(scores.ds) == list(range(200 - 2 * H, 200))
    assert list(scores.cutoff.unique()) == [200 - 2 * H - 1, 200 - H - 1]
    assert np.abs(scores["Titans"] - scores.y).mean() < 1  # 4 without the column
    assert (scores["Titans-hi-80"] - scores["Titans-lo-80"]).mean() < 4


def test_same_seed_same_forecast():
    few = {"loss": DistributionLoss("Normal"), "dropout": 0.1, "max_steps": 3, "val_check_steps": 3}
    models = [make(random_seed=seed, alias=f"{i}", **few) for i, seed in enumerate((1, 1, 2))]
    nf = NeuralForecast(models=models, freq=1)
    nf.fit(sales())
    forecast = nf.predict()
    assert (forecast["0"] == forecast["1"]).all()
    assert not np.allclose(forecast["0"], forecast["2"])


def test_trains_on_short_series_with_gaps_and_every_covariate():
    df = frame().assign(known=lambda df: np.sin(df.ds), past=lambda df: np.cos(df.ds), available_mask=1.0)
    df = df[(df.unique_id == "a") | (df.ds >= LENGTH - 20)].copy()  # b is shorter than the window
    gap = (df.unique_id == "a") & df.ds.between(140, 145)
    df.loc[gap, ["y", "available_mask"]] = [1e6, 0.0]
    static = pd.DataFrame({"unique_id": ["a", "b"], "size": [0.0, 1.0]})
    lists = {"futr_exog_list": ["known"], "hist_exog_list": ["past"], "stat_exog_list": ["size"]}
    nf = NeuralForecast(models=[make(**lists, start_padding_enabled=True, max_steps=2, val_check_steps=2)], freq=1)
    nf.fit(df, static_df=static, val_size=H)
    future = nf.make_future_dataframe().assign(known=lambda df: np.sin(df.ds))
    forecast = nf.predict(futr_df=future)
    assert len(forecast) == 2 * H
    a, b = forecast["Titans"].to_numpy().reshape(2, H)
    assert np.abs(a).max() < 20  # the million in the gap is not seen
    assert np.abs(b - 500).max() < 20


def test_what_is_missing_does_not_matter_and_what_is_there_does(scrambled):
    lists = {"futr_exog_list": ["f", "g"], "hist_exog_list": ["p"], "stat_exog_list": ["s"]}
    model = make(**lists, loss=MAE())
    model.core = scrambled(model.core, dtype=torch.float32, scale=0.3)
    batch = windows(model)
    mask = batch["insample_mask"].clone()
    mask[:, 5:9] = 0
    garbage = batch["insample_y"].clone()
    garbage[:, 5:9] = -1e4
    base = model({**batch, "insample_mask": mask})
    assert base.shape == (5, H, 1)
    assert torch.equal(model({**batch, "insample_mask": mask, "insample_y": garbage}), base)
    assert not torch.allclose(model(batch), base)
    for name in ("futr_exog", "hist_exog", "stat_exog", "insample_y"):
        changed = batch[name].clone()
        changed[0] += 1
        difference = (model({**batch, name: changed}) - model(batch)).abs().amax((1, 2))
        assert difference[0] > 1e-3
        assert difference[1:].max() < 1e-3


def test_each_parameter_of_a_distribution_is_moved_by_covariates_in_its_own_step_and_way(scrambled):
    model = make(futr_exog_list=["f"], loss=DistributionLoss("StudentT"))
    model.core = scrambled(model.core, dtype=torch.float32, scale=0.3)
    batch = windows(model)
    changed = batch["futr_exog"].clone()
    changed[:, L + 2] += 1
    difference = model({**batch, "futr_exog": changed}) - model(batch)
    assert difference.shape == (5, H, 3)
    assert difference[:, [0, 1, 3, 4, 5]].abs().max() == 0
    moved = difference[:, 2]
    assert moved.abs().min() > 0
    assert not torch.allclose(moved[:, 0], moved[:, 1], rtol=1e-2)


@pytest.mark.parametrize(
    ("variant", "loss", "outputs"),
    [
        ("lmm", MAE(), 1),
        ("mac", MQLoss(quantiles=[0.9, 0.1]), 2),
        ("mag", DistributionLoss("StudentT"), 3),
        ("mal", DistributionLoss("NegativeBinomial"), 2),
    ],
    ids=["lmm", "mac", "mag", "mal"],
)
def test_every_variant_gives_what_the_loss_wants_and_learns_in_all_its_parts(variant, loss, outputs):
    lists = {"futr_exog_list": ["f"], "hist_exog_list": ["p"], "stat_exog_list": ["s"]}
    model = make(variant=variant, loss=loss, **lists, config={"segment_length": 8, "sliding_window": 8})
    output = model(windows(model))
    assert output.shape == (5, H, outputs)
    output.square().sum().backward()
    assert not [name for name, p in model.core.named_parameters() if p.grad is None]
    if variant == "mac":
        assert (output[..., 0] >= output[..., 1]).all()  # the levels, in the loss's order


def test_leaves_out_the_window_where_told():
    model = make(exclude_insample_y=True, futr_exog_list=["f"])
    assert not model.core.config.normalize  # else the forecast would be on the scale of a window of zeros


def test_takes_the_arguments_of_patchtst():
    names = list(inspect.signature(PatchTST).parameters)
    shared = {"exclude_insample_y", "futr_exog_list", *names[names.index("max_steps") : -1]} - {"scaler_type"}
    ours, theirs = ({**kind(h=2, input_size=6, **QUIET).hparams} for kind in (Titans, PatchTST))
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    assert make(max_steps=7, alias="one").hparams["max_steps"] == 7
    assert make().scaler.scaler_type == "identity"
    assert make(loss=DistributionLoss("Normal")).scaler.scaler_type == "standard"
    assert make(loss=DistributionLoss("Normal"), scaler_type="robust").scaler.scaler_type == "robust"
    assert make(patch_len=99).core.config.patch_length == L
    assert make(patch_len=4, stride=None).core.config.patch_stride == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "gru"}, "variant='gru' is unknown"),
        ({"stride": 0}, "patch_stride=0 must be a whole number"),
        ({"stride": 8}, "patch_stride=8 is longer than a patch"),
        ({"config": {"horizon": 3}}, "config holds horizon"),
        ({"config": {"hidden_size": 3, "magic": 1}}, "config holds hidden_size, magic"),
    ],
)
def test_refuses_what_cannot_work(arguments, message):
    with pytest.raises(TitansError, match=message):
        make(**arguments)


@pytest.mark.parametrize("input_size", [1, 2, 6, 7, 8, 15])
def test_a_window_shorter_than_a_patch_is_one_patch(input_size):
    """With the arguments of PatchTST as they are."""
    PatchTST(h=2, input_size=input_size, **QUIET)
    config = Titans(h=2, input_size=input_size, **QUIET).core.config
    assert config.patch_length == input_size
    assert config.patch_stride == min(8, input_size)
    assert config.num_tokens == 1
    assert Titans(h=2, input_size=input_size, patch_len=16, stride=8, **QUIET).core.config == config


def test_without_neuralforecast_names_the_extra(monkeypatch):
    spec = importlib.util.find_spec("titans.forecasting.neuralforecast")
    monkeypatch.setitem(sys.modules, "neuralforecast.common._base_model", None)
    with pytest.raises(TitansError, match=r'pip install "titans-lm\[forecast\]"'):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.slow  # it takes as long as importing transformers
def test_titans_imports_none_of_it():
    code = (
        "import sys, titans, titans.models.forecasting\n"
        "for name in ('pandas', 'neuralforecast', 'pytorch_lightning'): assert name not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_page_runs():
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    namespace = {}
    exec(compile("\n".join(code), PAGE, "exec"), namespace)
    names = ["Titans-median", "Titans-lo-80", "Titans-hi-80", "PatchTST", "iTransformer"]
    assert list(namespace["forecast"].columns[2:]) == names
    assert set(names) < set(namespace["scores"].columns)
