import numpy as np
import pytest
import torch

from titans.errors import TitansError
from titans.evaluation.forecasting import prepare, score_forecasts, split_rows, standardize

GENERATOR = np.random.default_rng(0)
HOURLY = GENERATOR.normal(size=(17420, 2)) * [3, 0.1] + [10, -2]


def test_ett_split_of_hours():
    train, validation, test = split_rows(17420, "ETTh1", "ett", 96)
    assert (train, validation, test) == (range(8640), range(8544, 11520), range(11424, 14400))


@pytest.mark.parametrize(
    ("name", "frequency"), [("ETTm2.csv", None), ("ettm1", None), ("mine", "15min"), ("ETTh1", "15min")]
)
def test_ett_split_of_quarters_of_an_hour(name, frequency):
    parts = split_rows(69680, name, "ett", 96, frequency)
    assert parts == (range(34560), range(34464, 46080), range(45984, 57600))


@pytest.mark.parametrize(("name", "frequency"), [("mine", "h"), ("ETTm1", "h")])
def test_ett_step_is_taken_over_the_name(name, frequency):
    assert split_rows(17420, name, "ett", 96, frequency).test.stop == 14400


@pytest.mark.parametrize(("rows", "borders"), [
    (52696, (36887, 42157, 52696)),  # Weather
    (26304, (18412, 21044, 26304)),  # ECL
    (1000, (700, 800, 1000)),
    (1009, (706, 808, 1009)),  # 706.3 and 201.8 are cut, and what is left is for validation
])  # fmt: skip
def test_custom_split(rows, borders):
    train, validation, test = borders
    expected = (range(train), range(train - 96, validation), range(validation - 96, test))
    assert split_rows(rows, "mine", "custom", 96) == expected


def test_rows_of_weather_and_electricity_are_those_that_papers_print():
    """The iTransformer paper's table of data sets counts the pasts that fit into each part."""
    for rows, printed in ((52696, (36792, 5271, 10540)), (26304, (18317, 2633, 5261))):
        parts = split_rows(rows, "mine", "custom", 96)
        assert tuple(len(part) - 96 + 1 for part in parts) == printed


def test_test_windows_of_ett():
    benchmark = prepare(HOURLY, "ETTh1", "ett")
    counts = {h: tuple(len(benchmark.windows(part, h)) for part in ("train", "validation", "test")) for h in (96, 720)}
    assert counts == {96: (8449, 2785, 2785), 720: (7825, 2161, 2161)}
    assert [len(benchmark.windows("test", h)) for h in benchmark.horizons] == [2785, 2689, 2545, 2161]
    quarters = prepare(np.repeat(HOURLY, 4, 0), "ETTm1", "ett")
    assert [len(quarters.windows("test", h)) for h in quarters.horizons] == [11425, 11329, 11185, 10801]


def test_first_futures_are_the_first_rows_of_their_part():
    rows = np.arange(17420.0)[:, None]
    benchmark = prepare(rows, "ETTh1", "ett", context_length=336, horizons=[5])
    for part, first, last in (("train", 336, 8639), ("validation", 8640, 11519), ("test", 11520, 14399)):
        windows = benchmark.windows(part, 5)
        _, future = windows.batch(torch.tensor([0, len(windows) - 1]))
        future = future * rows[:8640].std() + rows[:8640].mean()
        assert future[0, 0].item() == pytest.approx(first, abs=0.01)
        assert future[1, -1].item() == pytest.approx(last, abs=0.01)


def test_the_scale_is_that_of_the_train_part(close):
    data = np.concatenate([HOURLY[:8640], 1e6 * np.ones((8780, 2))])
    benchmark = prepare(data, "ETTh1", "ett")
    expected = (data - HOURLY[:8640].mean(0)) / HOURLY[:8640].std(0)  # numpy's is the population's
    close(benchmark.values.double(), torch.as_tensor(expected), 1e-6)


def test_constant_channel_keeps_its_scale(close):
    values = torch.full((1000, 2), 0.1, dtype=torch.float64)
    values[:, 1] = torch.arange(1000) % 2
    scaled = standardize(values, range(500))
    close(scaled[:, 0], torch.zeros(1000), 1e-10)
    close(scaled[:, 1], 2 * values[:, 1] - 1, 1e-12)


def test_score_is_in_scaled_space():
    """Forecasting the mean of a scaled channel has the variance of the test part as its error, weighted by use."""
    benchmark = prepare(HOURLY, "ETTh1", "ett")
    scores = score_forecasts(lambda past: torch.zeros_like(past), benchmark.windows("test", 96))
    scaled = (HOURLY - HOURLY[:8640].mean(0)) / HOURLY[:8640].std(0)
    futures = np.lib.stride_tricks.sliding_window_view(scaled[11520:14400], 96, axis=0)
    assert scores.windows == len(futures) == 2785
    assert scores.mse == pytest.approx((futures**2).mean(), rel=1e-6)
    assert scores.mae == pytest.approx(np.abs(futures).mean(), rel=1e-6)


def test_describes_itself():
    line = prepare(HOURLY, "ETTh1", "ett", horizons=[96, 720]).describe()
    assert "\n" not in line
    assert line.startswith("ETTh1, protocol ett: rows train [0, 8640), validation [8544, 11520), test [11424, 14400)")
    assert "2,785 at horizon 96, 2,161 at horizon 720" in line


@pytest.mark.parametrize(("arguments", "message"), [
    ((HOURLY[:14399], "ETTh1", "ett"), r"14,399 rows, .* first 14,400 .*: use the custom"),
    ((HOURLY, "ETTm1", "ett"), r"17,420 rows, .* first 57,600 of data with 4 an hour"),
    ((HOURLY, "mine", "ett"), r"mine has a time step nobody gave, .* hourly .* 15-minute"),
    ((HOURLY, "mine", "else"), r"'else', expected one of ett, custom"),
    ((HOURLY[:500], "mine"), r"the train part of mine has 350 rows, .* 96 and .* 720 need 816"),
    ((HOURLY[:3000], "mine"), r"the validation part of mine has 396 rows, .* need 816"),
    ((HOURLY[:100], "mine"), r"train part of mine has 70 rows, not even a look-back of 96"),
    ((HOURLY[:0], "mine"), r"train part of mine has 0 rows"),
    ((HOURLY[:, 0], "mine"), r"shape \(17420,\)"),
    ((np.where(HOURLY > 18, np.nan, HOURLY), "mine"), r"mine has [\d,]+ values that are not finite"),
])  # fmt: skip
def test_refuses_data_the_protocol_is_not_for(arguments, message):
    with pytest.raises(TitansError, match=message):
        prepare(*arguments)


@pytest.mark.parametrize("horizons", [[], [0], [96, -1], [96, 96]])
def test_refuses_bad_horizons(horizons):
    with pytest.raises(TitansError, match=r"horizons are .* at least 1"):
        prepare(HOURLY, "mine", horizons=horizons)


def test_refuses_a_horizon_longer_than_the_test_part():
    with pytest.raises(TitansError, match=r"validation part of ETTh1 has 2,976 rows, .* need 2,977"):
        prepare(HOURLY, "ETTh1", "ett", horizons=[96, 2881])
