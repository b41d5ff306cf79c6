"""The step of time stamps is found, calendar, gaps and jitter included; every stamp keeps its place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from titans.errors import TitansError

pd = pytest.importorskip("pandas")
alignment = pytest.importorskip("titans.forecasting.alignment")
frequencies = pytest.importorskip("titans.forecasting.frequency")

EXACT = {  # pandas' alias of the stamps: the step that is found
    **{
        alias: alias for alias in ("s", "min", "15min", "h", "36h", "61700ms", "D", "3D", "B", "MS", "ME", "BMS", "BME")
    },
    **{"W-TUE": "7D", "QS-FEB": "3MS", "QE": "3ME", "YS": "12MS", "YE": "12ME"},
}


def placed(stamps):
    """The frequency, and the grid with what was put there."""
    frequency = frequencies.infer_frequency(stamps)
    return frequency, alignment.align(stamps, frequency)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(("alias", "found"), EXACT.items())
def test_regular_stamps_are_their_own_grid(alias, found, unit):
    if unit == "s" and "ms" in alias:
        pytest.skip("finer than the unit")
    stamps = pd.date_range("2016-02-01 10:30", periods=40, freq=alias).as_unit(unit)
    frequency, laid = placed(stamps)
    assert frequency == found
    assert laid.times.equals(stamps)
    assert laid.times.dtype == stamps.dtype
    assert laid.moved == 0
    assert (laid.place == np.arange(40)).all()
    more = pd.date_range(stamps[0], periods=47, freq=alias)[40:]
    assert (frequencies.future_times(laid.times, frequency, 7) == more).all()


@pytest.mark.parametrize("alias", EXACT)
@given(seed=st.integers(0, 10**6))
def test_gaps_are_places_without_a_stamp(alias, seed):
    stamps = pd.date_range("2016-02-01 10:30", periods=60, freq=alias)
    kept = np.flatnonzero(np.random.default_rng(seed).random(60) < 0.8)
    kept = np.union1d(kept, [0, 1, 2, 58, 59])
    frequency, laid = placed(stamps[kept])
    assert frequency == EXACT[alias]
    assert (laid.place == kept).all()
    assert laid.times.equals(pd.DatetimeIndex(stamps, freq=None))


@given(seed=st.integers(0, 10**6), step=st.sampled_from(["10s", "min", "15min", "h", "D"]))
def test_jitter_is_removed(seed, step):
    exact = pd.date_range("2016-02-01", periods=3000, freq=step)
    length = (exact[1] - exact[0]).total_seconds()
    late = np.clip(np.random.default_rng(seed).normal(0, 0.05, 3000), -0.2, 0.2) * length
    frequency, laid = placed(exact + pd.to_timedelta(late, unit="s"))
    assert frequency == step
    assert (laid.times == exact).all()
    assert (laid.place == np.arange(3000)).all()
    assert laid.moved > 2900


def test_one_wrong_stamp_moves_alone():
    stamps = pd.date_range("2016-02-01", periods=1000, freq="h").to_series().reset_index(drop=True)
    stamps[500] += pd.Timedelta(minutes=29)
    frequency, laid = placed(pd.DatetimeIndex(stamps))
    assert (frequency, laid.moved, len(laid.times)) == ("h", 1, 1000)
    assert (laid.place == np.arange(1000)).all()


def test_two_distances_share_a_step():
    stamps = pd.DatetimeIndex(["2016-01-01 00:00", "2016-01-01 00:40", "2016-01-01 01:00", "2016-01-01 01:40"])
    frequency, laid = placed(stamps)
    assert frequency == "20min"
    assert laid.place.tolist() == [0, 2, 3, 5]


def test_reports_on_changing_days_are_months():
    stamps = pd.DatetimeIndex(["2016-01-15", "2016-02-14", "2016-03-16", "2016-05-15", "2016-06-17"])
    frequency, laid = placed(stamps)
    assert frequency == "MS"
    assert laid.times.tolist() == pd.date_range("2016-01-01", periods=6, freq="MS").tolist()
    assert laid.place.tolist() == [0, 1, 2, 4, 5]
    assert laid.moved == 5


@pytest.mark.parametrize(
    ("stamps", "found"),
    [
        (pd.date_range("2016-03-01", periods=300, freq="D", tz="Europe/Berlin"), "D"),  # of 23, 24 and 25 hours
        (pd.date_range("2016-03-01", periods=9000, freq="h", tz="Europe/Berlin"), "h"),
        (pd.date_range("2016-03-01", periods=300, freq="D", tz="UTC").tz_convert("Europe/Berlin"), "24h"),
        (pd.date_range("2016-01-01", periods=30, freq="MS", tz="America/New_York"), "MS"),
    ],
)
def test_clock_changes_leave_no_gap(stamps, found):
    frequency, laid = placed(stamps)
    assert frequency == found
    assert laid.times.equals(pd.DatetimeIndex(stamps, freq=None))
    half = len(stamps) // 2
    assert frequencies.future_times(stamps[:half], found, len(stamps) - half).equals(laid.times[half:])


@pytest.mark.parametrize(
    ("numbers", "step", "place"),
    [
        ([0, 1, 2, 3], 1, [0, 1, 2, 3]),
        ([7, 8, 10, 11], 1, [0, 1, 3, 4]),
        ([-20, -10, 0, 30], 10, [0, 1, 2, 5]),
        ([0, 10, 21, 30, 39, 50, 60], 10, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_whole_numbers(numbers, step, place):
    frequency, laid = placed(pd.Index(numbers))
    assert frequency == step
    assert isinstance(laid.times, pd.RangeIndex)
    assert laid.place.tolist() == place
    assert laid.times[0] == numbers[0]
    assert frequencies.future_times(laid.times, step, 2).tolist() == [numbers[-1] + step, numbers[-1] + 2 * step]


@pytest.mark.parametrize(
    ("stamps", "reason"),
    [
        (pd.date_range("2016-01-01", periods=1), "only one time stamp, 2016-01-01"),
        (
            pd.DatetimeIndex(np.sort(np.random.default_rng(0).integers(0, 10**15, 500)).view("M8[ns]")),
            "no regular step",
        ),
        (
            pd.date_range("2016-01-01", periods=99, freq="h").append(pd.DatetimeIndex(["2106-01-01"])),
            "usually 01:00:00",
        ),
        (pd.Index([26, 4026, 5311, 90000, 90001]), "no regular step"),
    ],
)
def test_irregular_stamps_are_refused(stamps, reason):
    with pytest.raises(TitansError, match=reason):
        frequencies.infer_frequency(stamps)


@pytest.mark.parametrize(
    ("frequency", "reason"),
    [
        ("zz", "not a frequency"),
        ("-1h", "not a frequency"),
        (0, "at least 1"),
        (1, "need a pandas alias"),
        ("2h", "do not lie near"),
        ("D", "do not lie near"),
        ("MS", "closer together"),
        ("10min", "for only 99 of the 589 steps"),
        ("W-MON", "2016-01-01 00:00:00 is none of"),
    ],
)
def test_a_frequency_that_does_not_fit_is_refused(frequency, reason):
    with pytest.raises(TitansError, match=reason):
        alignment.align(pd.date_range("2016-01-01", periods=99, freq="h"), frequency)
    with pytest.raises(TitansError, match="need a whole number"):
        alignment.align(pd.Index([1, 2, 3]), "h")
