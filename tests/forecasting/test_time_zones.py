"""Days, weeks and months in local time: where clocks change, no step is lost and none drifts."""

import zoneinfo

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from titans.errors import TitansError

pd = pytest.importorskip("pandas")
frames = pytest.importorskip("titans.forecasting.frames")
alignment = pytest.importorskip("titans.forecasting.alignment")
frequencies = pytest.importorskip("titans.forecasting.frequency")
to_naive = pytest.importorskip("titans.forecasting.time_zones").to_naive
season_length = pytest.importorskip("titans.forecasting.frequency").season_length

ZONES = sorted(zone for zone in zoneinfo.available_timezones() if "/" in zone)
STEPS = {"15min": None, "h": None, "D": "D", "3D": "3D", "W-MON": "7D", "B": "B", "MS": "MS", "ME": "ME", "QS": "3MS"}


def local(clock, zone):
    """What pandas makes of local times: the next of a skipped time, of a doubled one the first."""
    return clock.tz_localize(zone, ambiguous=np.ones(len(clock), bool), nonexistent="shift_forward")


def continued(stamps, horizon):
    frequency = frequencies.infer_frequency(stamps)
    laid = alignment.align(stamps, frequency)
    return frequency, laid, frequencies.future_times(laid.times, frequency, horizon)


@given(
    zone=st.sampled_from(ZONES),
    alias=st.sampled_from(sorted(STEPS)),
    end=st.dates(pd.Timestamp("2012-02-01").date(), pd.Timestamp("2035-01-01").date()),
    quarters=st.integers(0, 95),
    steps=st.integers(8, 60),
)
def test_forecasts_go_on_as_the_calendar_does(zone, alias, end, quarters, steps):
    """History and forecast together are what pandas makes of the whole: regular, one stamp for each step."""
    start = pd.Timestamp(end) + pd.Timedelta(minutes=15 * quarters)
    clock = pd.date_range(start, periods=steps + 20, freq=alias)
    whole = clock.tz_localize("UTC").tz_convert(zone) if STEPS[alias] is None else local(clock, zone)
    assume(whole.is_unique)  # a zone that skips a day
    frequency, laid, more = continued(whole[:steps], 20)
    assert frequency == (STEPS[alias] or alias)
    assert laid.times.equals(pd.DatetimeIndex(whole[:steps], freq=None))
    assert (laid.place == np.arange(steps)).all()
    assert laid.moved == 0
    assert more.equals(pd.DatetimeIndex(whole[steps:], freq=None))
    assert frequencies.infer_frequency(laid.times.append(more)) == frequency
    last = to_naive(laid.times, frequency)[-1:]
    assert alignment.steps_after(last, whole[steps - 3 :], frequency)[3:].tolist() == [*range(1, 21)]


@pytest.mark.parametrize(
    ("zone", "clock", "last"),
    [
        ("America/Santiago", "2024-06-01", "2024-09-03"),  # midnight of September 8 is skipped
        ("America/Santiago", "2024-06-01", "2024-09-08"),  # the history ends on it
        ("Africa/Cairo", "2024-01-01", "2024-04-25"),
        ("Asia/Beirut", "2024-01-01", "2024-03-31"),
        ("Europe/Berlin", "2024-01-01 02:30", "2024-03-27"),
        ("Europe/Berlin", "2024-01-01 02:30", "2024-03-31"),
        ("Europe/Berlin", "2024-07-01 02:30", "2024-10-20"),  # doubled on October 27
        ("Europe/Berlin", "2024-07-01 02:30", "2024-10-27"),
        ("Australia/Lord_Howe", "2024-07-01 02:15", "2024-10-06"),  # by half an hour
    ],
)
@pytest.mark.parametrize("skipped", ["shift_forward", pd.Timedelta("1h")])
def test_no_day_is_lost_and_none_drifts(zone, clock, last, skipped):
    """Whichever way the source writes a time that does not exist."""
    days = pd.date_range(clock, pd.Timestamp(last) + pd.Timedelta("23h"), freq="D")
    options = {"ambiguous": np.zeros(len(days), bool), "nonexistent": skipped}
    frequency, laid, more = continued(days.tz_localize(zone, **options), 14)
    expected = local(pd.date_range(days[-1], periods=15, freq="D"), zone)
    assert frequency == "D"
    assert laid.moved == 0
    assert len(laid.times) == len(days)
    assert list(more) == list(expected[1:])
    assert more.is_unique


@pytest.mark.parametrize(("zone", "month"), [("America/Asuncion", "2023-10-01"), ("America/Santiago", "2024-09-01")])
def test_months_that_begin_with_a_skipped_midnight(zone, month):
    months = pd.date_range(end=month, periods=24, freq="MS")
    whole = local(months, zone)
    frequency, laid, more = continued(whole, 3)
    assert frequency == "MS"
    assert laid.times.equals(pd.DatetimeIndex(whole, freq=None))
    assert list(more.tz_localize(None)) == list(pd.date_range(months[-1], periods=4, freq="MS")[1:])


def delayed(clock, seconds, seed=0):
    late = np.random.default_rng(seed).uniform(*seconds, len(clock))
    return clock + pd.to_timedelta(np.rint(late), unit="s")


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize(
    ("clock", "alias", "seconds", "found"),
    [
        ("06:00", "D", (0, 50), "D"),
        ("19:00", "D", (0, 50), "D"),
        ("19:00", "D", (-1200, 1200), "D"),
        ("23:59", "D", (-30, 30), "D"),
        ("00:00", "D", (-30, 30), "D"),
        ("12:00", "W-SUN", (-900, 900), "7D"),
        ("17:30", "B", (0, 50), "B"),
        ("06:00", "MS", (0, 50), "MS"),
        ("23:30", "ME", (0, 50), "ME"),
        ("00:00", "h", (0, 50), "h"),
        ("00:20", "h", (-60, 60), "h"),
    ],
)
@given(seed=st.integers(0, 99), periods=st.integers(50, 120))  # so many that the mean delay of up to 50 s is below 30
def test_delays_and_jitter_keep_step_and_day(clock, alias, seconds, found, zone, seed, periods):
    exact = pd.date_range(f"2024-01-01 {clock}", periods=periods, freq=alias)
    stamps = delayed(exact, seconds, seed)
    stamps = stamps if zone is None else local(stamps, zone).sort_values()
    frequency, laid, more = continued(stamps, 7)
    assert frequency == found
    whole = pd.date_range(exact[0], periods=periods + 7, freq=alias)
    whole = pd.DatetimeIndex(whole if zone is None else local(whole, zone), freq=None)
    if alias != "h" or zone is None:  # a local clock of hours has none for the hour that is skipped
        assert laid.times.equals(whole[:periods])
        assert more.equals(whole[periods:])


@pytest.mark.parametrize(("alias", "found"), [("D", "D"), ("h", "h"), ("15min", "15min")])
def test_delays_that_grow_and_start_anew_are_no_step(alias, found):
    exact = pd.date_range("2024-01-01 06:00", periods=200, freq=alias)
    frequency, laid, more = continued(exact + pd.to_timedelta(np.arange(200) * 7 % 50, unit="s"), 1)
    assert frequency == found
    assert laid.times.equals(pd.DatetimeIndex(exact, freq=None))
    assert list(more) == [exact[-1] + exact.freq]


def test_days_of_24_hours_stay_such():
    whole = pd.date_range("2024-01-01", periods=200, freq="D", tz="UTC").tz_convert("Europe/Berlin")
    frequency, _, _ = continued(whole[:60], 100)
    assert frequency == "D"  # nothing says otherwise, until clocks change
    frequency, _, more = continued(whole[:150], 50)
    assert frequency == "24h"
    assert more.equals(pd.DatetimeIndex(whole[150:], freq=None))


@pytest.mark.parametrize(("day", "alias"), [(None, "SMS-15"), (16, "SMS-16"), (None, "SME-15")])
def test_half_months(day, alias):
    whole = pd.date_range("2023-01-01", periods=60, freq=alias)
    frequency, laid, more = continued(whole[:48], 12)
    assert frequency == alias
    assert laid.times.equals(pd.DatetimeIndex(whole[:48], freq=None))
    assert list(more) == list(whole[48:])


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize(("day", "step"), [(15, 1), (30, 1), (2, 3), (29, 1), (4, 12)])
def test_months_on_a_day_keep_it(day, step, zone):
    """The last day of months that are shorter; delays are taken off as elsewhere, and later stamps may be near."""
    first = pd.date_range("2022-01-01 06:00", periods=40, freq=f"{step}MS")
    whole = pd.DatetimeIndex([time.replace(day=min(day, time.days_in_month)) for time in first])
    whole = whole if zone is None else local(whole, zone)
    frequency, laid, more = continued(whole[:26], 14)
    alias = pd.DateOffset(months=step, day=day).freqstr
    assert (frequency, laid.moved) == (alias, 0)
    assert laid.times.equals(whole[:26])
    assert more.equals(whole[26:])
    last = frequencies.to_naive(whole[25:26], alias)
    assert alignment.steps_after(last, whole[25:], alias).tolist() == list(range(15))
    assert alignment.steps_after(last, whole[26:28] - pd.Timedelta("1D"), alias).tolist() == [1, 2]
    late = [np.arange(26) % 7, 1440 * (np.arange(26) == 9) - 1440 * (np.arange(26) == 11)]  # minutes; two on other days
    for minutes in late:
        _, laid, more = continued(whole[:26] + pd.to_timedelta(minutes, unit="min"), 14)
        assert list(laid.times.day) == list(whole[:26].day)
        assert list(more.day) == list(whole[26:].day)
        assert (laid.place == np.arange(26)).all()
    assert season_length(alias) == max(12 // step, 1)


def test_a_frequency_of_months_on_a_day_may_be_given():
    stamps = pd.DatetimeIndex(["2024-01-14", "2024-02-16", "2024-03-15"])
    laid = alignment.align(stamps, pd.DateOffset(months=1, day=15).freqstr)
    assert list(laid.times) == list(pd.date_range("2024-01-15", periods=3, freq=pd.DateOffset(months=1)))
    assert laid.moved == 2
    for wrong in ("MS-15", "<DateOffset: day=0, months=1>", "<DateOffset: day=15, months=0>"):
        with pytest.raises(TitansError, match="is not a frequency"):
            alignment.check_frequency(wrong)


QUICK = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_persistent_tokens": 1, "epochs": 1}
QUICK |= {"train_windows": 1, "input_size": 8, "seconds": 0.01}


@pytest.mark.parametrize(
    ("zone", "clock", "end"),
    [
        ("Europe/Berlin", "02:30", "2024-03-28"),
        ("Europe/Berlin", "02:30", "2024-03-31"),
        ("America/Santiago", "00:00", "2024-09-03"),
    ],
)
def test_a_forecaster_goes_on_over_a_change_of_clocks(zone, clock, end, tmp_path):
    """Its forecasts, the covariates of its horizon, new rows, and what was saved: all on the days that are meant."""
    TitansForecaster = pytest.importorskip("titans.forecasting.forecaster").TitansForecaster
    whole = pd.date_range(end=f"{end} {clock}", periods=50, freq="D").append(
        pd.date_range(f"{end} {clock}", periods=21, freq="D")[1:]
    )
    df = pd.DataFrame(
        {"unique_id": "a", "ds": local(whole, zone), "y": np.sin(np.arange(70.0)), "x": 1.0 * (whole.day_of_week == 6)}
    )
    later = whole.tz_localize(zone, ambiguous=np.zeros(70, bool), nonexistent=pd.Timedelta("1h"))
    model = TitansForecaster(7, futr_exog_list=["x"], **QUICK).fit(df[:50])
    assert model.series_state.frequency == "D"
    expected = list(df.ds[50:57])
    assert list(model.predict(df[50:57]).ds) == expected
    near = model.predict(df.assign(ds=later)[50:57])  # a time that does not exist, written in the other way
    pd.testing.assert_frame_equal(near, model.predict(df[50:57]))
    model.save(tmp_path / "forecaster")
    model = TitansForecaster.load(tmp_path / "forecaster")
    assert list(model.predict(df[50:57]).ds) == expected
    model.update(df.assign(ds=later)[50:60]).update(df[60:63])
    assert list(model.predict(df[63:]).ds) == list(df.ds[63:])
    assert list(model.cutoffs) == [df.ds[62]]
    assert model.series_state.steps.tolist() == [63]
    model.save(tmp_path / "forecaster")
    assert list(TitansForecaster.load(tmp_path / "forecaster").cutoffs) == [df.ds[62]]


def test_a_forecaster_of_months_keeps_their_day(tmp_path):
    TitansForecaster = pytest.importorskip("titans.forecasting.forecaster").TitansForecaster
    days = pd.date_range("2019-01-01", periods=60, freq="MS") + pd.Timedelta(days=14)
    df = pd.DataFrame({"unique_id": "a", "ds": days, "y": np.sin(np.arange(60.0))})
    model = TitansForecaster(3, **QUICK).fit(df[:50])
    assert not any("moved" in note for note in model.notes)
    model.save(tmp_path / "forecaster")
    model = TitansForecaster.load(tmp_path / "forecaster").update(df[50:55])
    assert list(model.predict().ds) == list(days[55:58])


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC+02:00", None])
def test_times_are_read_back_as_they_were_saved(zone, tmp_path):
    times = local(pd.date_range("2024-01-01 02:30", periods=50, freq="D"), zone)
    forecaster = pytest.importorskip("titans.forecasting.forecaster").TitansForecaster(3, **QUICK)
    forecaster.fit(pd.DataFrame({"unique_id": "a", "ds": times, "y": np.arange(50.0)}))
    forecaster.save(tmp_path / "forecaster")
    loaded = type(forecaster).load(tmp_path / "forecaster")
    assert list(loaded.cutoffs) == [times[-1]]
    assert list(loaded.predict()["ds"]) == list(forecaster.predict()["ds"])
