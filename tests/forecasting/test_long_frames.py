"""Long frames become series on regular grids: every number at its time, NaN where there is none, all of it noted."""

import decimal
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from titans.errors import TitansError

pd = pytest.importorskip("pandas")
frames = pytest.importorskip("titans.forecasting.frames")


def frame(steps=10, frequency="h", names=("a", "b"), start="2016-01-01", **options):
    times = pd.date_range(start, periods=steps, freq=frequency, **options)
    return pd.concat(
        [pd.DataFrame({"unique_id": name, "ds": times, "y": np.arange(steps) + 0.5}) for name in names],
        ignore_index=True,
    )


def check_clean(panel, times, names=("a", "b")):
    assert [one.unique_id for one in panel.series] == list(names)
    assert panel.notes == []
    for one in panel.series:
        assert one.times.tolist() == list(times)
        assert one.y.tolist() == (np.arange(len(times)) + 0.5).tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f,
        lambda f: f.sort_values(["ds", "unique_id"]),
        lambda f: f.astype({"unique_id": "category"}),
        lambda f: f.assign(ds=f.ds.astype(str)),
        lambda f: f.assign(ds=f.ds.astype("datetime64[s]")),
        lambda f: f.assign(ds=pd.Series([stamp.to_pydatetime() for stamp in f.ds], dtype=object)),
        lambda f: f.assign(ds=f.ds.dt.to_period("h")),
        lambda f: f.assign(y=f.y.astype(str)),
        lambda f: f.assign(y=[decimal.Decimal(str(number)) for number in f.y]),
        lambda f: f.convert_dtypes(),
        lambda f: f.set_index(np.zeros(len(f))),
        lambda f: f.set_index(np.zeros(len(f))).astype({"y": object, "ds": str}),
    ],
)
def test_types_of_clean_frames(change):
    panel = frames.regular(change(frame()))
    assert panel.frequency == "h"
    check_clean(panel, pd.date_range("2016-01-01", periods=10, freq="h"))


@pytest.mark.parametrize("kind", ["int64", "int8", "uint64", "float64", "Int64", "str"])
def test_whole_numbers_are_time(kind):
    panel = frames.regular(frame().assign(ds=pd.Series([*range(5, 15)] * 2).astype(kind)))
    assert panel.frequency == 1
    check_clean(panel, range(5, 15))
    assert isinstance(panel.series[0].times, pd.RangeIndex)


@pytest.mark.parametrize(("zone", "frequency"), [("Europe/Berlin", "D"), ("Europe/Berlin", "h"), ("UTC", "15min")])
def test_time_zones_are_kept(zone, frequency):
    given = frame(9000 if frequency == "h" else 300, frequency, tz=zone)
    panel = frames.regular(given)
    assert panel.frequency == frequency
    check_clean(panel, given.ds[: len(given) // 2])
    assert panel.series[0].times.dtype == given.ds.dtype


def test_dates_of_python_and_zones_that_differ():
    daily = frame(frequency="D")
    check_clean(frames.regular(daily.assign(ds=[stamp.date() for stamp in daily.ds])), daily.ds[:10])
    utc = frame().assign(ds=frame().ds.astype(str) + "+02:00")
    panel = frames.regular(utc)
    assert panel.series[0].times[0] == pd.Timestamp("2015-12-31 22:00", tz="UTC")
    assert panel.series[0].times[0].hour == 0  # as it was written
    assert panel.notes == []


@given(st.data())
def test_any_disorder_is_undone(data):
    """Series of different lengths; rows dropped, doubled with another number, and shuffled."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    frequency = data.draw(st.sampled_from(["15min", "h", "D", "MS"]))
    rows, expected = [], {}
    for name in "abc"[: data.draw(st.integers(1, 3))]:
        steps = data.draw(st.integers(8, 40))
        times = pd.date_range("2016-03-01", periods=steps, freq=frequency)
        kept = np.union1d(np.flatnonzero(rng.random(steps) < 0.8), [0, 1, 2, steps - 1])
        one = pd.DataFrame({"unique_id": name, "ds": times, "y": rng.normal(size=steps), "x": rng.normal(size=steps)})
        twice = one.iloc[rng.choice(kept, 3, replace=False)]
        rows += [one.iloc[kept], twice.assign(y=twice.y + 2.0)]
        one.loc[~one.index.isin(kept), ["y", "x"]] = np.nan
        one.loc[twice.index, "y"] += 1.0
        expected[name] = one
    panel = frames.regular(pd.concat(rows).sample(frac=1, random_state=rng.integers(99)))
    assert panel.frequency == frequency
    assert panel.covariates == ["x"]
    assert {one.unique_id for one in panel.series} == set(expected)
    for one in panel.series:
        wanted = expected[one.unique_id]
        assert one.times.equals(pd.DatetimeIndex(wanted.ds, freq=None))
        np.testing.assert_allclose(one.y, wanted.y, rtol=1e-12)
        np.testing.assert_allclose(one.covariates[:, 0], wanted.x, rtol=1e-12)
    assert any(f"{3 * len(expected)} rows with the same time" in note for note in panel.notes)
    missing = sum(int(one.y.isna().sum()) for one in expected.values())
    assert any(f"{missing} of " in note and "values are missing" in note for note in panel.notes) == (missing > 0)


def test_what_is_missing_is_noted():
    given = frame()
    given.loc[3, "y"], given.loc[4, "y"] = np.nan, np.inf
    panel = frames.regular(given.drop(index=[5, 15]))
    assert np.flatnonzero(np.isnan(panel.series[0].y)).tolist() == [3, 4, 5]
    assert np.flatnonzero(np.isnan(panel.series[1].y)).tolist() == [5]
    assert panel.notes == [
        "1 infinite value treated as missing (y: 1)",
        "2 of 20 steps of time had no row (first 2016-01-01 05:00:00)",
        "4 of 20 values are missing (a: 3, b: 1)",
    ]
    panel = frames.regular(
        given.assign(ds=given.ds.where(given.index != 9), y=given.y.where(given.unique_id == "a", 2))
    )
    assert panel.notes[0] == "1 row without a time was left out"
    assert panel.notes[-1] == "1 series of one constant value: b"
    assert [len(one.times) for one in panel.series] == [9, 10]


@pytest.mark.parametrize("kind", [object, str, "Float64"])
def test_labels_of_the_index_may_repeat(kind):
    """As after `concat`: rows are told apart by their place."""
    given = frame().assign(x=np.arange(20.0))
    given["y"], given["x"] = given.y.astype(kind), given.x.astype(kind)
    given.loc[3, ["y", "x"]] = None
    twice = given.set_index(np.arange(20) % 10)
    for one, other in zip(frames.regular(given).series, frames.regular(twice).series, strict=True):
        np.testing.assert_array_equal(one.y, other.y)
        np.testing.assert_array_equal(one.covariates, other.covariates)
        assert one.times.equals(other.times)
    assert np.flatnonzero(np.isnan(other.y)).tolist() == []
    assert np.flatnonzero(np.isnan(frames.regular(twice).series[0].y)).tolist() == [3]


def test_covariates():
    given = frame().assign(
        x=np.arange(20.0), z="text", w=[True, False] * 10, n=pd.array([None, *range(19)], dtype="Int64")
    )
    panel = frames.regular(given.drop(index=2))
    assert panel.covariates == ["x", "w", "n"]
    assert panel.notes[0] == "1 column without numbers left out: z"
    expected = np.stack([np.arange(10.0), np.arange(1, 11) % 2, np.arange(10) - 1.0], 1)
    expected[2] = expected[0, 2] = np.nan
    np.testing.assert_array_equal(panel.series[0].covariates, expected)


def test_series_of_any_length_share_a_frequency():
    given = pd.concat([frame(100, "h", "a"), frame(3, "2h", "b"), frame(1, "h", "c", start="2020-01-01 00:07")])
    panel = frames.regular(given)
    assert panel.frequency == "h"
    assert [len(one.times) for one in panel.series] == [100, 5, 1]
    assert np.isnan(panel.series[1].y).tolist() == [False, True] * 2 + [False]
    working = pd.concat([frame(100, "B", "a"), frame(50, "D", "b")])
    assert frames.regular(working).frequency == "D"
    assert frames.regular(frame(1), frequency="h").frequency == "h"


@pytest.mark.parametrize(
    "times", [["2016-01-01", "2016-01-09", "2016-02-20"], ["2016-01-01 00:20", "2016-01-01 00:35"]]
)
@pytest.mark.parametrize("frequency", [None, "h"])
def test_a_few_rows_do_not_block_the_others(times, frequency):
    panel = frames.regular(
        pd.concat([frame(), frame(len(times), names="c").assign(ds=pd.to_datetime(times))]), frequency
    )
    assert panel.frequency == "h"
    assert [one.unique_id for one in panel.series] == ["a", "b"]
    assert panel.notes == ["1 series of a few rows, off the others' steps, left out: c"]


def test_series_without_numbers_are_left_out():
    given = frame()
    panel = frames.regular(given.assign(y=given.y.where(given.unique_id == "b")))
    assert [one.unique_id for one in panel.series] == ["b"]
    assert panel.notes == ["1 series without a number left out: a"]


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ([1], {}, "not list"),
        (frame().drop(columns="y"), {}, r"no column y \(columns: unique_id, ds\)"),
        (frame()[["ds"]], {}, "no column unique_id and no column y"),
        (frame().set_index("unique_id"), {}, "no column unique_id"),
        (pd.concat([frame(), frame()[["y"]]], axis=1), {}, "two columns of the frame are called 'y'"),
        (frame().head(0), {}, "no rows"),
        (frame().assign(unique_id=["a", None] * 10), {}, "unique_id is missing in 10 rows"),
        (frame().assign(ds="x"), {}, "\"ds\" holds 'x', which is no time"),
        (frame().assign(ds=[*frame().ds.astype(str)[1:], "x"]), {}, "\"ds\" holds 'x'"),
        (frame().assign(ds=np.arange(20) / 2), {}, '"ds" holds'),
        (frame().assign(ds=True), {}, "\"ds\" holds 'True'"),
        (frame().assign(ds=pd.NaT), {}, "\"ds\" holds 'nothing'"),
        (frame().assign(ds=pd.Series([1, "2016-01-01"] * 10, dtype=object)), {}, "which is no time"),
        (frame().assign(y=[*"1" * 19, "abc"]), {}, "\"y\" holds 'abc'"),
        (frame().assign(y="1,5"), {}, "\"y\" holds '1,5'"),
        (frame().assign(y=1j), {}, '"y" holds'),
        (frame().assign(y=np.nan), {}, '"y" holds no number'),
        (frame().assign(y=1e200), {}, "larger than 1e"),
        (frame(1), {}, "no series has two times"),
        (frame(), {"frequency": "zz"}, "not a frequency"),
        (frame(), {"frequency": "D"}, 'series "a": the time stamps'),
        (pd.concat([frame(100, "h", "a"), frame(50, "45min", "b")]), {}, 'series "b": the time stamps do not lie near'),
        (pd.concat([frame(100, "h", "a"), frame(4, "9h", "b")]), {}, 'series "b": .* only 4 of the 28 steps'),
        (pd.concat([frame(3, "h", "a"), frame(3, "9h", "b")]), {}, 'series "b": .* only 3 of the 19 steps'),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(given, options, reason):
    with pytest.raises(TitansError, match=reason) as refused:
        frames.regular(given, **options)
    assert "\n" not in str(refused.value)


def test_the_frame_given_is_not_changed():
    given = frame().sample(frac=1, random_state=0)
    before = given.copy(deep=True)
    frames.regular(given)
    frames.from_long(given)
    pd.testing.assert_frame_equal(given, before)


def test_series_side_by_side():
    given = pd.concat([frame(5, "h", "a"), frame(3, "h", [7], start="2016-01-01 01:00").assign(x=1.0)])
    table = frames.from_long(given)
    assert table.frame.columns.tolist() == ["a", "7"]
    assert table.frame["a"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert table.frame["7"].tolist() == pytest.approx([math.nan, 0.5, 1.5, 2.5, math.nan], nan_ok=True)
    assert table.notes[0] == "1 column beside y left out: x"
    assert "2 of 10 values are missing (7: 2)" in table.notes[1]
