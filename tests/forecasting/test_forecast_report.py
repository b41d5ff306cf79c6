"""The report of forecasting a table, and its page: what it says is what was measured."""

import dataclasses
import html
import math
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from titans.errors import TitansError
from titans.forecasting import forecast_page, forecast_report
from titans.forecasting.forecast_report import IN_MINUTES, forecast_table
from titans.forecasting.frames import Table

HORIZON = 6


def table(channels=3, steps=150, index=None):
    noise = np.random.default_rng(0).normal(0, 0.1, (steps, channels))
    values = np.sin(np.arange(steps) * math.tau / 24)[:, None] * np.arange(1, channels + 1) + noise
    index = pd.date_range("2020-01-01", periods=steps, freq="h", name="ds") if index is None else index
    frame = pd.DataFrame(values, index=index, columns=[f"c{i}" for i in range(channels)])
    frequency = "h" if isinstance(index, pd.DatetimeIndex) else 1
    return Table(frame, frequency, ["a note with <b>"])


@pytest.fixture(scope="module", autouse=True)
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast_report, "IN_MINUTES", {"train_windows": 1, "epochs": 1})
        yield


@pytest.fixture(scope="module")
def report(quick):
    return forecast_table(table(), HORIZON)


class Checker(HTMLParser):
    """Notes what is opened and not closed, and what is fetched from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.fetched = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        named = dict(attributes)
        self.fetched += [v for k, v in named.items() if k in ("src", "href", "xlink:href") and not v.startswith("#")]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_scores_are_those_of_the_forecasts(report):
    frame = report.backtest
    assert frame["cutoff"].nunique() == 5  # a fifth of 150 rows
    one = frame[frame["unique_id"] == "c1"]
    assert (one["y"].to_numpy() == report.table.frame["c1"].to_numpy()[-30:]).all()
    expected = tuple((one[model] - one["y"]).abs().mean() for model in ("TitansForecaster", "SeasonalNaive"))
    assert report.score("c1", "mae") == pytest.approx(expected)
    history = report.table.frame["c1"].to_numpy()[:-30]
    scale = np.abs(history[24:] - history[:-24]).mean()  # of the last day again, hour by hour
    assert report.score("c1", "mase") == pytest.approx(tuple(error / scale for error in expected))
    inside = frame["y"].between(frame["TitansForecaster-lo-80"], frame["TitansForecaster-hi-80"])
    assert report.coverage == {"80": pytest.approx(inside.mean())}
    mean = np.mean([report.score(f"c{i}", "mase") for i in range(3)], 0)
    assert report.mase == pytest.approx(tuple(mean))
    assert list(report.forecast["ds"].unique()) == list(pd.date_range("2020-01-07 06:00", periods=HORIZON, freq="h"))


def test_the_end_does_not_leak_into_its_forecasts(report):
    changed = table()
    changed.frame.iloc[-30:] += 100.0
    other = forecast_table(changed, HORIZON).backtest
    first = report.backtest["cutoff"] == report.backtest["cutoff"].min()
    columns = ["TitansForecaster", "TitansForecaster-lo-80", "SeasonalNaive"]
    assert (report.backtest[first][columns] == other[first][columns]).all(axis=None)


def test_verdict_either_way(report):
    ours, naive = report.mase
    better = sum(mae < other for mae, other in (report.score(c, "mae") for c in report.channels))
    first, *others = report.verdict()
    word = "smaller" if ours < naive else "larger"
    assert f"{abs(1 - ours / naive):.1%} {word} than that of seasonal-naive" in first
    assert f"({ours:.3f}" in first.replace("scaled: ", "")
    assert f"smaller in {better} of 3 channels" in first
    swapped = {"TitansForecaster": "SeasonalNaive", "SeasonalNaive": "TitansForecaster"}
    turned = dataclasses.replace(report, scores=report.scores.rename(columns=swapped))
    says = ["Seasonal-naive is better" in " ".join(sentences) for sentences in (others, turned.verdict())]
    assert says == [ours >= naive, ours < naive]
    assert ("verdict naive" in forecast_page.page(turned, "x")) != ("verdict naive" in forecast_page.page(report, "x"))
    assert "ended by its time limit" in dataclasses.replace(report, cut=True).verdict()[-1]


def test_page(report):
    page = forecast_page.page(report, "<file>.csv")
    checked = Checker(page)
    assert not checked.open
    assert not checked.fetched
    assert "<h1>Forecast of &lt;file&gt;.csv</h1>" in page
    assert "a note with &lt;b&gt;" in page
    assert page.count("<svg ") == 3
    assert not re.search(r"<svg.*#(?!000|fff)[0-9a-f]{6}.*</svg>", page)  # colours are the page's
    cells = re.findall(r"<td>c1</td>" + r"<td>([^<]*)</td>" * 5, page)[0]
    mae, naive = report.score("c1", "mae")
    scaled = [forecast_page.number(value) for value in report.score("c1", "mase")]
    assert cells[:4] == (forecast_page.number(mae), forecast_page.number(naive), *scaled)
    assert float(cells[4].replace("−", "-").rstrip("%")) == pytest.approx(100 * (mae / naive - 1), abs=0.06)
    for sentence in report.verdict():
        assert html.escape(sentence) in page
    assert forecast_page.page(report, "<file>.csv") == page


def test_at_most_a_dozen_plots_and_names_that_mean_something_to_matplotlib():
    many = table(channels=14, steps=40)
    many.frame.columns = ["$x_{$", "_hidden", *(f"c{i}" for i in range(12))]
    page = forecast_page.page(forecast_table(many, HORIZON), "x")
    assert page.count("<svg ") == 12
    assert "2 more in the table" in page
    assert "<td>c11</td>" in page
    assert "$x_{$" in page


def test_whole_number_time_and_missing_and_constant():
    data = table(index=pd.RangeIndex(150, name="ds"))
    data.frame["c1"] = 7.0
    data.frame.iloc[100:110, 2] = math.nan
    report = forecast_table(data, HORIZON)
    assert (report.forecast.query("unique_id == 'c1'")["TitansForecaster"] == 7).all()
    assert math.isnan(report.score("c1", "mase")[1])
    assert "This step of time has no usual season" in " ".join(report.verdict())
    assert "of 2 channels" in report.verdict()[0] or "of 3 channels" in report.verdict()[0]
    page = forecast_page.page(report, "x")
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    none = forecast_table(dataclasses.replace(data, frame=data.frame[["c1"]]), HORIZON)
    assert none.verdict()[0].startswith("No channel has errors to compare")
    Checker(forecast_page.page(none, "x"))


def test_columns_and_refusals():
    assert forecast_table(table(), HORIZON, columns=["c2"]).channels == ["c2"]
    with pytest.raises(TitansError, match="no column of numbers called x: there are c0, c1, c2"):
        forecast_table(table(), HORIZON, columns=["x"])
    with pytest.raises(
        TitansError, match="there are 15 steps of time, but a forecast of 6 and its back-test need at least 16"
    ):
        forecast_table(table(steps=15), HORIZON)
    assert forecast_table(table(steps=16), HORIZON).backtest["cutoff"].nunique() == 1
    with pytest.raises(TitansError, match="variant='x' is unknown"):
        forecast_table(table(), HORIZON, variant="x")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1.000"), (-12.3456, "-12.35"), (123456.7, "123,457"), (0.00123456, "0.001235"),
        (math.nan, "–"), (1e-9, "1.000e-09"), (3e12, "3.000e+12"),
    ],
)  # fmt: skip
def test_numbers(value, text):
    assert forecast_page.number(value) == text


def test_targets(tmp_path):
    forecast_page.check_targets(tmp_path / "new" / "a.html", None)
    assert (tmp_path / "new").is_dir()
    with pytest.raises(TitansError, match="is a folder"):
        forecast_page.check_targets(tmp_path, None)
    with pytest.raises(TitansError, match="two results"):
        forecast_page.check_targets(tmp_path / "a", tmp_path / "b" / ".." / "a")


@pytest.mark.parametrize(("steps", "context_length", "expected"), [(40, None, 6), (40, 5, 5), (20, None, 4)])
def test_windows_shorter_than_the_usual_patch(monkeypatch, steps, context_length, expected):
    settings = {"train_windows": 1, "epochs": 1, "patch_length": 16, "patch_stride": 16}
    assert settings.items() <= (IN_MINUTES | {"epochs": 1}).items()
    monkeypatch.setattr(forecast_report, "IN_MINUTES", settings)
    found = forecast_table(table(1, steps, pd.RangeIndex(steps)), HORIZON, context_length=context_length)
    assert f"windows of {expected} steps" in found.facts["model"]


@pytest.mark.parametrize("frequency", ["min", "h", "D", "W-SUN", "MS"])
def test_a_horizon_of_one_step_is_seen(frequency):
    index = pd.date_range("2020-01-01", periods=40, freq=frequency, name="ds")
    found = forecast_table(dataclasses.replace(table(1, 40, index), frequency=frequency), 1)
    page = forecast_page.page(found, "x")  # and without a warning about the ticks
    assert page.count("var(--first)") > len(found.levels) + 2
