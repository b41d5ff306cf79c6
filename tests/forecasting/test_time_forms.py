"""Times as files write them: quarters, weeks, years with months, offsets, numbers. Read as written, or refused."""

import numpy as np
import pytest

from titans.errors import TitansError

pd = pytest.importorskip("pandas")
frames = pytest.importorskip("titans.forecasting.frames")


def lines(cells, header="date,v"):
    return header + "\n" + "".join(f"{cell},{number % 7}\n" for number, cell in enumerate(cells))


def check(table, frequency, times):
    assert table.frequency == frequency
    assert list(table.frame.index) == list(times)
    assert table.frame.notna().to_numpy().all()


@pytest.mark.parametrize(
    "form",
    [
        "{y} Q{q}",
        "{y}Q{q}",
        "{y}-Q{q}",
        "{y}/Q{q}",
        "{y}:q{q}",
        "Q{q} {y}",
        "Q{q}/{y}",
        "Q{q}-{y}",
        "{q}Q{y}",
        "{y}-q0{q}",
    ],
)
def test_quarters(read, form):
    cells = [form.format(y=1998 + i // 4, q=i % 4 + 1) for i in range(20)]
    check(read(lines(cells)), "3MS", pd.date_range("1998-01-01", periods=20, freq="QS"))


@pytest.mark.parametrize("form", ["{y}M{m:02}", "{y}-M{m}", "{y}/{m:02}", "{m:02}/{y}", "{y}-{m:02}", "{y}{m:02}"])
def test_months(read, form):
    cells = [form.format(y=1998 + i // 12, m=i % 12 + 1) for i in range(30)]
    check(read(lines(cells)), "MS", pd.date_range("1998-01-01", periods=30, freq="MS"))


@pytest.mark.parametrize(
    "form", ["%G-W%V", "%GW%V", "%G W%V", "%G-W%V-1", "%GW%V1", "W%V/%G", "KW%V %G", "KW %V/%G", "%G-KW%V"]
)
def test_weeks(read, form):
    weeks = pd.date_range("2020-11-02", periods=70, freq="W-MON")  # 2020 has 53 of them
    check(read(lines(weeks.strftime(form))), "7D", weeks)
    check(frames.from_long(pd.DataFrame({"unique_id": "a", "ds": weeks.strftime(form), "y": range(70)})), "7D", weeks)


@pytest.mark.parametrize(
    ("header", "form", "times", "frequency"),
    [
        ("Year,Month,Sales", "%Y,{m}", pd.date_range("2010-01-01", periods=30, freq="MS"), "MS"),
        ("month,year,sales", "%m,%Y", pd.date_range("2010-01-01", periods=30, freq="MS"), "MS"),
        ("Year,Month,Sales", "%Y,%b", pd.date_range("2010-01-01", periods=30, freq="MS"), "MS"),
        ("Year,Month,Sales", "%Y,%B", pd.date_range("2010-01-01", periods=30, freq="MS"), "MS"),
        ("Jahr,Quartal,Umsatz", "%Y,{q}", pd.date_range("2010-01-01", periods=30, freq="QS"), "3MS"),
        ("Year,Quarter,Sales", "%Y,Q{q}", pd.date_range("2010-01-01", periods=30, freq="QS"), "3MS"),
        ("Year,Week,Sales", "%G,{w}", pd.date_range("2010-01-04", periods=60, freq="W-MON"), "7D"),
        ("Year,Month,Day,Sales", "%Y,{m},{d}", pd.date_range("2010-01-01", periods=60), "D"),
        ("year,month,day,hour,pm", "%Y,{m},{d},{h}", pd.date_range("2010-01-01", periods=60, freq="h"), "h"),
        ("dteday,hr,cnt", "%Y-%m-%d,{h}", pd.date_range("2011-01-01", periods=60, freq="h"), "h"),
    ],
)  # fmt: skip
def test_columns_that_say_when_together(read, header, form, times, frequency):
    cells = [
        time.strftime(form).format(m=time.month, q=time.quarter, w=time.isocalendar()[1], d=time.day, h=time.hour)
        for time in times
    ]
    table = read(lines(cells, header))
    check(table, frequency, times)
    assert table.frame.columns.tolist() == [header.split(",")[-1]]
    assert any("put together from the columns" in note for note in table.notes)


@pytest.mark.parametrize("header", ["Datum;Uhrzeit;Last", "Date;Time;Load", "Tag;von;MW"])
@pytest.mark.parametrize("clock", ["%H:%M", "%H:%M:%S", "%H.%M.%S"])
def test_days_and_quarters_of_an_hour_in_two_columns(read, header, clock):
    times = pd.date_range("2024-01-01", periods=300, freq="15min")
    text = "".join(f"{time:%d.%m.%Y};{time.strftime(clock)};{i % 96}\n" for i, time in enumerate(times))
    table = read(f"{header}\n{text}")
    check(table, "15min", times)
    assert table.frame.iloc[:, 0].tolist() == [i % 96 for i in range(300)]


@pytest.mark.parametrize("hours", ["hour", "clock"])
def test_the_end_of_the_day_is_24_hours(read, hours):
    times = pd.date_range("2024-01-01 01:00", periods=72, freq="h")
    cells = [
        f"{time - pd.Timedelta('1h'):%Y-%m-%d},{time.hour or 24}{':00' if hours == 'clock' else ''}" for time in times
    ]
    table = read(lines(cells, f"date,{hours},v"))
    begins = hours == "hour"  # hours named by their number: the first begins at midnight
    check(table, "h", times - pd.Timedelta("1h") if begins else times)


def test_months_in_columns_beside_the_year(read):
    months = "January,February,March,April,May,June,July,August,September,October,November,December"
    for header in (months, months.upper(), ",".join(name[:3] for name in months.split(","))):
        rows = [f"{year}," + ",".join(str(12 * (year - 2000) + i) for i in range(12)) for year in range(2000, 2004)]
        rows[-1] = rows[-1].replace(",46,47", ",,")  # the last year is not over
        table = read("\n".join([f"Year,{header}", *rows]))
        check(table, "MS", pd.date_range("2000-01-01", periods=46, freq="MS"))
        assert table.frame["value"].tolist() == list(range(46))


@pytest.mark.parametrize(
    "form",
    ["%a %d %b %Y %H:%M", "%A, %Y-%m-%d %H:%M", "{day} %H:%M - {day} 24:00", "%d.%m.%Y %H:%M:%S – %d.%m.%Y %H:59:59"],
)
def test_days_of_the_week_and_ranges(read, form):
    times = pd.date_range("2024-01-25", periods=300, freq="h")
    cells = [time.strftime(form).format(day=time.strftime("%d.%m.%Y")) for time in times]
    check(read("when;v\n" + "".join(f"{cell};{i % 7}\n" for i, cell in enumerate(cells))), "h", times)


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("alias", "found"), [("MS", "MS"), ("QS", "3MS"), ("W-MON", "7D"), ("D", "D"), ("B", "B"), ("YS", "12MS")]
)
@pytest.mark.parametrize("zone", [BERLIN, "Asia/Kolkata", "America/New_York"])
def test_local_midnights_with_an_offset_are_the_days_that_are_written(read, alias, found, zone):
    days = pd.date_range("2024-01-01", periods=40, freq=alias)
    cells = [stamp.isoformat() for stamp in days.tz_localize(zone)]
    check(read(lines(cells)), found, days)
    given = pd.DataFrame({"unique_id": "a", "ds": cells, "y": range(40)})
    objects = given.assign(ds=pd.Series([pd.Timestamp(cell).to_pydatetime() for cell in cells], dtype=object))
    for frame in (given, objects):
        assert list(frames.regular(frame).series[0].times.tz_localize(None)) == list(days)
        assert frames.regular(frame).frequency == found


def test_hours_with_offsets_keep_their_instants(read):
    hours = pd.date_range("2024-10-26", periods=60, freq="h", tz=BERLIN)  # one is doubled
    table = read(lines([stamp.isoformat() for stamp in hours]))
    check(table, "h", hours)
    assert table.notes == ["times of different UTC offsets were converted to UTC"]
    table = read(lines([stamp.isoformat() for stamp in hours[:20]]))
    check(table, "h", hours[:20])
    assert table.frame.index[0].hour == 0  # one offset is kept
    assert table.notes == []
    table = read(lines([f"{stamp:%Y-%m-%d %H:%M:%S}+02" for stamp in hours[:20]]))
    check(table, "h", hours[:20])


def test_what_goes_on_is_read_as_what_came_before():
    """A single row, or rows of one season, do not show whether their offset matters."""
    TitansForecaster = pytest.importorskip("titans.forecasting.forecaster").TitansForecaster
    settings = {"epochs": 1, "train_windows": 1, "input_size": 8, "seconds": 0.01, "hidden_size": 8}
    for alias, start in (("MS", "2020-01-01"), ("h", "2024-03-29")):
        stamps = pd.date_range(start, periods=60, freq=alias, tz=BERLIN)
        df = pd.DataFrame({"unique_id": "a", "ds": [stamp.isoformat() for stamp in stamps], "y": np.arange(60.0) % 12})
        model = TitansForecaster(3, num_attention_heads=2, **settings).fit(df[:40])
        for row in range(40, 45):
            model.update(df[row : row + 1])
        expected = stamps[45:48].tz_localize(None) if alias == "MS" else stamps[45:48]
        assert list(model.predict().ds) == list(expected)


@pytest.mark.parametrize(
    ("digits", "alias"), [("%Y%m", "MS"), ("%Y%m%d", "D"), ("%Y%m%d%H", "h"), ("%Y%m%d%H%M", "15min")]
)
@pytest.mark.parametrize("header", ["date,v", "t,v"])
def test_digits_of_dates(read, digits, alias, header):
    times = pd.date_range("2023-11-01", periods=40, freq=alias)
    check(read(lines(times.strftime(digits), header)), alias, times)


@pytest.mark.parametrize(
    ("scale", "word"), [(1, "seconds"), (10**3, "milliseconds"), (10**6, "microseconds"), (10**9, "nanoseconds")]
)
def test_times_since_1970(read, scale, word):
    times = pd.date_range("2023-11-01", periods=40, freq="h")
    seconds = times.as_unit("s").asi8
    table = read(lines([int(second) * scale for second in seconds], "timestamp,v"))
    check(table, "h", times)
    assert table.notes == [f"the time was read as {word} since 1970 (UTC)"]
    if scale == 1:
        check(read(lines([f"{second}.0" for second in seconds], "timestamp,v")), "h", times)
        check(read(lines([f"{second}.4" for second in seconds], "timestamp,v")), "h", times + pd.Timedelta("400ms"))


def test_days_of_a_spreadsheet(read):
    days = pd.date_range("2023-01-01", periods=40)
    table = read(lines(range(44927, 44967)))
    check(table, "D", days)
    assert table.notes == ["the time was read as days of a spreadsheet: 44927 as 2023-01-01 00:00:00"]
    hours = pd.date_range("2023-01-01", periods=40, freq="h")
    check(read(lines([44927 + i / 24 for i in range(40)])), "h", hours)
    assert read(lines(range(44927, 44967), "t,v")).frequency == 1  # numbers, where nothing says that they are dates


@pytest.mark.parametrize("cells", [["Q5 2010"] * 9, ["2010 X1", "2010 X2"] * 9, ["2023-W54"] * 9, ["spring"] * 9])
def test_what_is_no_time_is_refused_with_forms_to_write(read, cells):
    with pytest.raises(TitansError, match=r"expected dates such as 2016-07-31 .*, 2010 Q1, 2023-W01, or whole numbers"):
        read(lines(cells))


@pytest.mark.parametrize("name", ["date", "week"])
def test_years_with_weeks_as_digits(read, name):
    weeks = pd.date_range("2019-12-30", periods=160, freq="W-MON")  # 2020 has 53 of them
    table = read(lines(weeks.strftime("%G%V"), f"{name},v"))
    check(table, "7D", weeks)
    assert any(note.startswith("the time was read as year and ISO week") for note in table.notes)


def test_digits_that_are_no_iso_weeks_are_refused(read):
    with pytest.raises(TitansError, match="202153 is no ISO week: write the first day of each week"):
        read(lines([202100 + week for week in range(1, 54)]))


def test_whole_numbers_are_no_weeks(read):
    check(read(lines(range(202000, 202090))), 1, range(202000, 202090))
