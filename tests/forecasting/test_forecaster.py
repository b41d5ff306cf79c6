import copy
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from utilsforecast.evaluation import evaluate
from utilsforecast.losses import mae, mse

from titans.errors import TitansError
from titans.forecasting.forecaster import NAME, TitansForecaster
from titans.forecasting.frequency import season_length
from titans.forecasting.stream import ForecastStream
from titans.forecasting.windows import PanelStreams, stream_step
from titans.models.forecasting import TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig

TINY = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_persistent_tokens": 1}
QUICK = {"epochs": 1, "train_windows": 2, "input_size": 8, "seconds": 0.01, **TINY}  # one step of training
TIMES = pd.date_range("2024-01-01", periods=400, freq="h")
COLUMNS = [NAME, f"{NAME}-lo-80", f"{NAME}-hi-80"]


def frame(name="a", steps=70, seed=0, times=TIMES, level=0.0, **columns):
    noise = np.random.default_rng(seed).normal(size=steps)
    y = level + np.sin(np.arange(steps) * 2 * np.pi / 8) + 0.3 * noise
    return pd.DataFrame({"unique_id": name, "ds": times[:steps], "y": y, **columns})


def two(steps=(70, 45)):
    return pd.concat([frame("a", steps[0]), frame("b", steps[1], 1, TIMES[20:], 50.0)], ignore_index=True)


def near(actual, expected, tolerance=1e-5):
    pd.testing.assert_frame_equal(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def fitted():
    settings = QUICK | {"epochs": 4, "seconds": None, "learning_rate": 1e-2}  # enough for the memory to matter
    return TitansForecaster(4, **settings).fit(two())


def restart(fitted, frames):
    """The same weights and scales, after reading other rows."""
    twin = copy.copy(fitted)
    twin.stream, twin.series_state = ForecastStream(fitted.model, 2), copy.copy(fitted.series_state)
    object.__setattr__(twin.series_state, "last", pd.DatetimeIndex([TIMES[0], TIMES[20]]) - pd.Timedelta("1h"))
    object.__setattr__(twin.series_state, "low", np.full(2, np.inf))
    object.__setattr__(twin.series_state, "high", np.full(2, -np.inf))
    for part in frames:
        twin.update(part)
    return twin


def test_shape_of_a_forecast(fitted):
    forecast = fitted.predict()
    assert list(forecast.columns) == ["unique_id", "ds", *COLUMNS]
    assert list(forecast["unique_id"]) == ["a"] * 4 + ["b"] * 4
    assert list(forecast["ds"]) == [*TIMES[70:74], *TIMES[65:69]]
    assert (forecast[COLUMNS[1]] <= forecast[NAME]).all()
    assert (forecast[NAME] <= forecast[COLUMNS[2]]).all()
    assert forecast[NAME][4:].between(40, 60).all()  # on the scale of its own series


def test_several_intervals_and_none():
    both = TitansForecaster(4, level=[90, 50], **QUICK).fit(frame()).predict()
    order = [f"{NAME}-lo-90", f"{NAME}-lo-50", NAME, f"{NAME}-hi-50", f"{NAME}-hi-90"]
    assert list(both.columns) == ["unique_id", "ds", NAME, order[1], order[3], order[0], order[4]]
    assert (both[order].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    alone = TitansForecaster(4, level=None, **QUICK).fit(frame()).predict()
    assert list(alone.columns) == ["unique_id", "ds", NAME]


def test_fit_reads_the_whole_series_as_a_stream_does(fitted):
    y = frame("a")["y"].to_numpy()
    stream = ForecastStream(fitted.model)
    scaled = (y - fitted.series_state.mean[0]) / fitted.series_state.std[0]
    stream.update(torch.tensor(scaled, dtype=torch.float32)[:, None])
    expected = (
        stream.forecast().prediction.flatten().double().numpy() * fitted.series_state.std[0]
        + fitted.series_state.mean[0]
    )
    np.testing.assert_allclose(fitted.predict()[NAME][:4], expected, rtol=1e-5, atol=1e-5)
    assert fitted.series_state.mean[0] == pytest.approx(y[:63].mean())  # the last tenth is for validation


@given(cuts=st.lists(st.integers(1, 69), max_size=6, unique=True), shuffle=st.booleans())
def test_how_rows_are_divided_among_updates_does_not_matter(fitted, cuts, shuffle):
    whole, bounds = two(), [0, *sorted(cuts), 70]
    parts = []
    for start, end in itertools.pairwise(bounds):
        rows = whole[(whole["ds"] >= TIMES[start]) & (whole["ds"] < TIMES[end - 1] + pd.Timedelta("1h"))]
        parts.append(rows.sample(frac=1, random_state=0) if shuffle else rows)
    twin = restart(fitted, parts)
    near(twin.predict(), fitted.predict())
    assert twin.stream.nbytes == fitted.stream.nbytes
    assert not any(tensor.requires_grad for tensor in twin.stream.held.state.tensors())


def test_update_goes_on_where_fit_ended():
    whole, cut = two((110, 85)), TIMES[70]
    first, second = whole[whole["ds"] < cut], whole[whole["ds"] >= cut]
    model = TitansForecaster(4, **QUICK).fit(first)
    before = model.predict()
    assert model.update(second) is model
    forecast = model.predict()
    assert list(forecast["ds"][:4]) == list(TIMES[110:114])
    near(forecast, restart(model, [whole]).predict())
    assert not np.allclose(forecast[NAME], before[NAME])
    forgetful = restart(model, [])
    forgetful.stream = ForecastStream(model.model, 2, memory=False)
    assert not np.allclose(forgetful.update(whole).predict()[NAME], forecast[NAME], atol=1e-6)  # memory matters


def test_gaps_are_missing_values_whatever_stands_there(fitted):
    whole = two()
    gap = (whole["unique_id"] == "a") & whole["ds"].between(TIMES[54], TIMES[66])
    without = restart(fitted, [whole[~gap]]).predict()
    missing = whole.assign(y=whole["y"].mask(gap))
    near(restart(fitted, [missing]).predict(), without)
    infinite = restart(fitted, [whole.assign(y=whole["y"].mask(gap, np.inf))])
    near(infinite.predict(), without)
    assert any("treated as missing" in note for note in infinite.notes)
    seen = whole[~gap]
    cut = restart(fitted, [seen[seen["ds"] < TIMES[59]], seen[seen["ds"] >= TIMES[59]]])  # within the gap
    near(cut.predict(), without)
    assert not np.allclose(without[NAME][:4], fitted.predict()[NAME][:4], atol=1e-6)


def test_missing_values_do_not_reach_training():
    gap = frame(y2=0.0).drop(columns="y2")
    gap.loc[20:30, "y"] = np.nan
    one = TitansForecaster(4, **QUICK).fit(gap)
    other = TitansForecaster(4, **QUICK).fit(gap.drop(index=range(20, 31)))
    near(one.predict(), other.predict())
    assert any("missing" in note for note in one.notes)


def test_other_series_do_not_matter(fitted):
    twin = copy.copy(fitted)  # goes on by itself
    before = twin.predict()
    more = frame("b", 30, 7, TIMES[65:], 1e6)
    after = twin.update(more).predict()
    near(after[:4], before[:4])
    assert (after[NAME][4:] > 1000).all()
    pd.testing.assert_frame_equal(fitted.predict(), before)


def test_same_seed_same_forecasts():
    settings = {**QUICK, "seconds": None, "batch_size": 16}
    torch.manual_seed(1)
    one = TitansForecaster(4, **settings).fit(frame())
    state = torch.random.get_rng_state()
    torch.rand(3)
    two_ = TitansForecaster(4, **settings).fit(frame())
    pd.testing.assert_frame_equal(one.predict(), two_.predict())
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing is drawn outside
    assert not one.predict().equals(TitansForecaster(4, **{**settings, "seed": 1}).fit(frame()).predict())


def test_scale_of_the_series_does_not_matter():
    settings = {**QUICK, "seconds": None, "batch_size": 16}
    data = frame()
    plain = TitansForecaster(4, **settings).fit(data).predict()
    scaled = TitansForecaster(4, **settings).fit(data.assign(y=data["y"] * 1000 + 5)).predict()
    np.testing.assert_allclose((scaled[COLUMNS] - 5) / 1000, plain[COLUMNS], rtol=1e-3, atol=1e-3)


def test_learns_a_season_better_than_repeating_it():
    steps = np.arange(300)
    y = 10 + 3 * np.sin(steps * 2 * np.pi / 24) + 0.5 * np.random.default_rng(0).normal(size=300)
    data = pd.DataFrame({"unique_id": "a", "ds": TIMES[:300], "y": y})
    shares = []
    model = TitansForecaster(12, input_size=24, train_windows=2, epochs=8, learning_rate=1e-2, **TINY)
    forecasts = model.cross_validation(data, progress=lambda share, line: shares.append(share))
    scores = evaluate(forecasts.drop(columns="cutoff"), [mse, mae], [NAME, "SeasonalNaive"]).set_index("metric")
    assert scores.loc["mse", NAME] < 0.75 * scores.loc["mse", "SeasonalNaive"]  # whose noise counts twice
    assert scores.loc["mae", NAME] < scores.loc["mae", "SeasonalNaive"]
    assert 0.4 < forecasts["y"].between(forecasts[f"{NAME}-lo-80"], forecasts[f"{NAME}-hi-80"]).mean() <= 1
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert list(forecasts["cutoff"].unique()) == list(TIMES[[263, 275, 287]])
    assert np.array_equal(forecasts["y"], y[264:])
    np.testing.assert_array_equal(forecasts["SeasonalNaive"], y[240:276])
    assert list(model.predict()["ds"][:1]) == [TIMES[300]]  # all was read


def test_a_cross_validation_with_steps_shorter_than_the_horizon_reads_all():
    model = TitansForecaster(4, **QUICK)
    result = model.cross_validation(two(), n_windows=2, step_size=3)
    assert len(result) == 2 * 2 * 4
    assert list(result.columns) == ["unique_id", "ds", "cutoff", *COLUMNS, "SeasonalNaive", "y"]
    assert list(model.cutoffs) == [TIMES[69], TIMES[64]]
    apart = TitansForecaster(4, **QUICK).cross_validation(two(), n_windows=2, step_size=6)
    assert list(apart["cutoff"].unique()) == [TIMES[59], TIMES[54], TIMES[65], TIMES[60]]
    with pytest.raises(TitansError, match=r"forecast from 17 origins \(a: 70, b: 45 steps\): expected at least 72"):
        model.cross_validation(two(), n_windows=17)
    with pytest.raises(TitansError, match="step_size is 0"):
        model.cross_validation(two(), step_size=0)


def test_a_known_covariate_that_decides_is_used():
    generator = np.random.default_rng(0)
    sign = generator.choice([-1.0, 1.0], size=260)
    data = pd.DataFrame({"unique_id": "a", "ds": TIMES[:260], "y": 5 + 2 * sign, "sign": sign, "noise": sign[::-1]})
    model = TitansForecaster(
        4, futr_exog_list=["sign"], input_size=8, train_windows=2, epochs=16, learning_rate=1e-2, **TINY
    )
    model.fit(data[:240])
    future = data[240:].drop(columns="y")
    forecast = model.predict(future)
    expected = data["y"][240:244].to_numpy()
    assert np.abs(forecast[NAME] - expected).mean() < 0.6  # 2 without it
    flipped = model.predict(future.assign(sign=-future["sign"]))
    assert ((flipped[NAME] > 5) == (expected < 5)).all()
    pd.testing.assert_frame_equal(model.predict(future.sample(frac=1, random_state=0)), forecast)
    model.update(data[240:250])
    later = model.predict(future)
    assert np.abs(later[NAME] - data["y"][250:254].to_numpy()).mean() < 0.6
    with pytest.raises(TitansError, match="give futr_df with the columns unique_id, ds, sign"):
        model.predict()
    with pytest.raises(TitansError, match=r'lacks sign of the series "a" at 2024-01-11 12:00:00'):
        model.predict(future[:12])
    with pytest.raises(TitansError, match=r'lacks sign of the series "a" at 2024-01-11 11:00:00'):
        model.predict(future.assign(sign=future["sign"].where(future.index != 251)))
    with pytest.raises(TitansError, match="two rows of the series"):
        model.predict(pd.concat([future, future]))
    with pytest.raises(TitansError, match="no column of numbers called sign"):
        model.update(data[250:].drop(columns="sign"))


def test_static_numbers_are_used():
    static = pd.DataFrame({"unique_id": ["b", "a", "c"], "size": [1.0, -1.0, 5.0], "colour": ["red", "blue", "red"]})
    model = TitansForecaster(4, **QUICK).fit(two(), static)
    assert model.model.config.num_static_covariates == 1
    other = TitansForecaster(4, **QUICK).fit(two(), static.assign(size=[-1.0, 1.0, 0.0]))
    assert not np.allclose(model.predict()[NAME], other.predict()[NAME], atol=1e-7)
    for wrong, message in (
        (static[:1], 'lacks the numbers of the series "a"'),
        (static[["unique_id", "colour"]], "no column of numbers"),
        (static.drop(columns="unique_id"), "no column unique_id"),
        (pd.concat([static, static]), "twice"),
    ):
        with pytest.raises(TitansError, match=message):
            TitansForecaster(4, **QUICK).fit(two(), wrong)


def test_constant_series_stay_constant_until_they_do_not():
    data = pd.concat([frame(), frame("c").assign(y=7.25)])
    model = TitansForecaster(4, **QUICK).fit(data)
    forecast = model.predict()
    assert (forecast.loc[4:, COLUMNS] == 7.25).all(axis=None)
    assert any("one constant value" in note for note in model.notes)
    model.update(pd.DataFrame({"unique_id": "c", "ds": TIMES[70:75], "y": [7.25, 8, 9, 10, 9]}))
    assert (model.predict()[NAME][4:] != 7.25).all()


def test_short_series():
    short = frame("s", 6, 3, TIMES[60:])
    model = TitansForecaster(4, **QUICK).fit(pd.concat([frame(), short]))
    assert model.predict()[COLUMNS].notna().all(axis=None)
    alone = TitansForecaster(4, epochs=1, **TINY).fit(frame(steps=9))  # shorter than any window
    assert alone.model.config.context_length == 4
    assert alone.predict()[COLUMNS].notna().all(axis=None)
    with pytest.raises(TitansError, match="too few values in the series t: 3: expected at least 4"):
        TitansForecaster(4, **QUICK).fit(frame("t", 3))
    near(model.fit(pd.concat([frame(), frame("t", 3)])).predict(), TitansForecaster(4, **QUICK).fit(frame()).predict())
    assert model.notes == ["1 series with fewer than 4 values left out: t"]
    twin = TitansForecaster(4, **QUICK)
    found = twin.cross_validation(pd.concat([frame(), frame("t", 14, times=TIMES[50:])]))
    pd.testing.assert_frame_equal(found, TitansForecaster(4, **QUICK).cross_validation(frame()))
    assert twin.notes == ["1 series with too few values for a back-test left out: t"]
    with pytest.raises(TitansError, match=r'"a" has 7 steps, expected at least 8'):
        TitansForecaster(4, **QUICK).fit(frame(steps=7))


@pytest.mark.parametrize(("steps", "horizon", "expected"), [(400, 12, 96), (400, 100, 100), (60, 12, 24), (20, 12, 4)])
def test_default_window(steps, horizon, expected):
    model = TitansForecaster(horizon, epochs=1, seconds=0.01, batch_size=2, **TINY).fit(frame(steps=steps))
    assert model.model.config.context_length == expected


@pytest.mark.parametrize("times", [
    TIMES.tz_localize("Europe/Berlin"),
    pd.date_range("2000-01-01", periods=80, freq="MS"),
    pd.RangeIndex(5, 405, 5),
])  # fmt: skip
def test_a_saved_forecaster_goes_on_as_the_one_it_was(tmp_path, times):
    model = TitansForecaster(4, futr_exog_list=["x"], **QUICK)
    static = pd.DataFrame({"unique_id": ["a", "b"], "z": [1, 2]})
    data = pd.concat([frame("a", 70, 0, times), frame("b", 64, 1, times)]).assign(x=1.5)
    data.loc[data.index[10], "x"] = 2.5
    model.fit(data, static)
    future = pd.DataFrame({"unique_id": np.repeat(["a", "b"], 80), "ds": times[:80].append(times[:80]), "x": 2.0})
    for _ in range(2):  # over what is there
        model.save(tmp_path / "new" / "forecaster")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["forecaster"]
    loaded = TitansForecaster.load(tmp_path / "new" / "forecaster")
    pd.testing.assert_frame_equal(loaded.predict(future), model.predict(future))
    assert loaded.settings == model.settings
    more = frame("b", 6, 2, times[65:]).assign(x=0.5)  # after a gap of one step
    after = model.update(more).predict(future)
    assert after["ds"][4] == times[71]
    pd.testing.assert_frame_equal(loaded.update(more).predict(future), after)


def test_damaged_and_foreign_files(fitted, tmp_path):
    path = tmp_path / "forecaster"
    with pytest.raises(TitansError, match="cannot read the forecaster file"):
        TitansForecaster.load(path)
    with pytest.raises(TitansError, match="call fit first"):
        TitansForecaster(4).save(path)
    fitted.save(path)
    data = path.read_bytes()
    header = data[8 : 8 + int.from_bytes(data[:8], "little")]
    middle = len(data) - 200
    for damaged in (
        data[: len(data) // 2], data[:-9] + b"X" + data[-8:], data[:middle] + bytes(8) + data[middle + 8 :], b"", b"[]",
        data.replace(b'std', b'sdt', 1),
    ):  # fmt: skip
        path.write_bytes(damaged)
        with pytest.raises(TitansError) as refused:
            TitansForecaster.load(path)
        assert "\n" not in str(refused.value)
    path.write_bytes(data)
    TitansForecaster.load(path)
    assert b'"version":"2"' in header
    path.write_bytes(data.replace(b'"version":"2"', b'"version":"9"', 1))
    with pytest.raises(TitansError, match="has version '9' and this is Titans for version 2: use the Titans"):
        TitansForecaster.load(path)
    path.write_bytes(data.replace(b'"titans-forecaster"', b'"titans-forecasted"', 1))
    with pytest.raises(TitansError, match="this is no forecaster file"):
        TitansForecaster.load(path)
    with pytest.raises(TitansError, match="is a folder, as Titans wrote once"):
        TitansForecaster.load(tmp_path)
    with pytest.raises(TitansError, match="cannot write"):
        fitted.save(tmp_path)


def test_updates_that_are_refused(fitted):
    before = fitted.predict()
    with pytest.raises(TitansError, match="unknown series z: expected those that fit was given"):
        fitted.update(frame("z", 3, 0, TIMES[70:]))
    with pytest.raises(TitansError, match=r'series "b": the row at 2024-01-03 16:00:00 is not later than'):
        fitted.update(pd.concat([frame("a", 3, 0, TIMES[70:]), frame("b", 3, 0, TIMES[64:])]))
    with pytest.raises(TitansError, match=r'series "a": the time stamp .*22:30:00 does not lie on the grid'):
        fitted.update(frame("a", 3, 0, TIMES[70:] + pd.Timedelta("30min")))
    with pytest.raises(TitansError, match="lies a gap of"):
        fitted.update(frame("a", 1, 0, TIMES[70:] + pd.Timedelta("9000D")))
    with pytest.raises(TitansError, match="holds whole numbers, but the series was read with dates"):
        fitted.update(frame("a", 3, 0, pd.RangeIndex(70, 73)))
    with pytest.raises(TitansError, match="with a time zone, but"):
        fitted.update(frame("a", 3, 0, TIMES[70:].tz_localize("UTC")))
    with pytest.raises(TitansError, match="no column y"):
        fitted.update(frame("a").drop(columns="y"))
    pd.testing.assert_frame_equal(fitted.predict(), before)


def test_before_fit():
    for call in (lambda one: one.predict(), lambda one: one.update(frame())):
        with pytest.raises(TitansError, match="call fit first"):
            call(TitansForecaster(4))


@pytest.mark.parametrize(("settings", "message"), [
    ({"h": 0}, "h is 0"),
    ({"h": 4, "train_windows": 1.5}, "train_windows is 1.5"),
    ({"h": 4, "learning_rate": 0}, "learning_rate is 0"),
    ({"h": 4, "seconds": -1}, "seconds is -1"),
    ({"h": 4, "seed": -1}, "seed is -1"),
    ({"h": 4, "seed": 2**64}, "seed is 18446744073709551616"),
    ({"h": 4, "freq": "often"}, '"often" is not a frequency'),
    ({"h": 4, "futr_exog_list": None}, "futr_exog_list is None"),
    ({"h": 4, "level": [80, 100]}, "percentages between 0 and 100"),
    ({"h": 4, "level": 80}, "percentages between 0 and 100"),
    ({"h": 4, "level": "high"}, "percentages between 0 and 100"),
    ({"h": 4, "quantiles": [0.1, 0.5, 0.9]}, "no setting quantiles"),
    ({"h": 4, "future_covariates": ["x"]}, "no setting future_covariates"),
    ({"h": 4, "futr_exog_list": ["y"]}, "other than unique_id, ds and y"),
    ({"h": 4, "hiden_size": 8}, "no setting hiden_size"),
    ({"h": 4, "num_channels": 8}, "no setting num_channels"),
    ({"h": 4, "tokens": "variate"}, "leave tokens"),
    ({"h": 4, "variant": "lstm"}, "variant='lstm' is unknown"),
    ({"h": 4, "hidden_size": 9}, "not a multiple"),
    ({"h": 4, "input_size": 8, "patch_length": 9}, "longer than the window"),
])  # fmt: skip
def test_settings_that_are_refused(settings, message):
    with pytest.raises(TitansError, match=message):
        TitansForecaster(**settings)


def test_an_index_of_a_frame_or_its_order_does_not_matter():
    data = two()
    shuffled = data.sample(frac=1, random_state=0)
    one, other = (
        TitansForecaster(4, **QUICK).fit(part).predict() for part in (data, shuffled.sort_values("unique_id"))
    )
    pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize(("frequency", "steps"), [
    ("h", 24), ("15min", 96), ("30s", 120), ("D", 7), ("7D", 52), ("B", 5), ("W-SUN", 52), ("MS", 12), ("3MS", 4),
    ("QE-DEC", 4), ("YS", 1), ("2h", 12), (1, 1), ("BME", 12), ("SMS-15", 24), ("SME-15", 24),
])  # fmt: skip
def test_seasons(frequency, steps):
    assert season_length(frequency) == steps


def test_samples_are_consecutive_windows():
    values = torch.arange(60.0).view(30, 2)
    samples = PanelStreams([values], 4, 3, 2)
    past, future, known, static = samples.batch(torch.tensor([5]))
    assert torch.equal(past[0], values[5:13].view(2, 4, 2))
    assert torch.equal(future[0], torch.stack([values[9:12], values[13:16]]))
    assert known.shape == (1, 2, 7, 0)
    assert static.shape == (1, 0)
    assert len(samples) == 30 - 8 - 3 + 1


def test_samples_of_a_panel():
    values = [torch.arange(40.0)[:, None], 100 + torch.arange(9.0)[:, None], torch.arange(3.0)[:, None]]
    known = [-one for one in values]
    samples = PanelStreams(values, 4, 2, 2, known=known)
    assert len(samples) == (40 - 8 - 2 + 1) + (9 - 4 - 2 + 1)
    past, future, covariates, static = samples.batch(torch.tensor([0, 31, 34]))
    assert static.shape == (3, 0)
    assert torch.equal(past[0].flatten(), torch.arange(8.0))
    assert torch.equal(future[0].flatten(), torch.tensor([4.0, 5, 8, 9]))
    nan = torch.nan
    torch.testing.assert_close(past[1].flatten(), torch.tensor([nan] * 4 + [100, 101, 102, 103]), equal_nan=True)
    torch.testing.assert_close(future[1].flatten(), torch.tensor([nan, nan, 104, 105]), equal_nan=True)
    torch.testing.assert_close(past[2].flatten(), torch.tensor([nan, *range(100, 107)]), equal_nan=True)
    assert torch.equal(covariates[2, 1].flatten(), -torch.arange(103.0, 109))
    held_out = PanelStreams(values, 4, 2, 2, spans=[range(30, 40), range(9, 9), range(3, 3)])
    assert len(held_out) == 9
    futures = held_out.batch(torch.arange(9))[1]
    assert float(futures.nan_to_num(99).min()) == 30
    assert torch.equal(futures[0, 1].flatten(), torch.tensor([30.0, 31]))
    thinned = PanelStreams(values, 4, 2, 2, most=10, jitter=True)
    assert len(thinned) == 9
    drawn = {float(thinned.batch(torch.tensor([1]))[0][0, 1, 0]) for _ in range(60)}
    assert drawn == {8.0, 9.0, 10.0, 11.0}
    with pytest.raises(TitansError, match="expected at least 44 steps"):
        PanelStreams(values, 4, 40, 2)


def test_a_step_carries_memory_and_counts_what_is_there():
    torch.manual_seed(0)
    config = TitansForecastingConfig(
        context_length=8, horizon=4, patch_length=2, patch_stride=2, quantiles=[0.1, 0.5, 0.9], **TINY
    )
    model = TitansForForecasting(config)
    past, future = torch.randn(3, 2, 8, 1), torch.randn(3, 2, 4, 1)
    future[0, 0] = torch.nan
    future[1, 1, 2:] = torch.nan
    prediction, loss = stream_step(model, past, future)
    first = model(past[:, 0], use_cache=True)
    second = model(past[:, 1], cache=first.cache)
    torch.testing.assert_close(prediction, torch.stack([first.prediction, second.prediction], 1))
    level = torch.tensor([0.1, 0.5, 0.9])
    error = future.unsqueeze(-1) - torch.stack([first.quantiles, second.quantiles], 1)
    expected = 2 * torch.maximum(level * error, (level - 1) * error).mean(-1).nanmean()
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    alone = model(past[:, 1]).prediction
    assert not torch.allclose(alone, second.prediction, atol=1e-6)


def test_a_cross_validation_takes_missing_covariates_and_rows_for_their_mean():
    data = frame(known=np.arange(70.0))
    data.loc[66, "known"] = np.nan
    found = TitansForecaster(4, futr_exog_list=["known"], **QUICK).cross_validation(data.drop(index=68), 2)
    assert found[COLUMNS].notna().all(axis=None)
    assert found["y"].isna().sum() == 1


def test_a_frequency_may_be_a_pandas_offset(tmp_path):
    model = TitansForecaster(4, freq=pd.offsets.Hour(), **QUICK).fit(frame())
    model.save(tmp_path / "forecaster")
    assert TitansForecaster.load(tmp_path / "forecaster").settings == model.settings
