"""CSV files of every kind become one clean table, or one sentence that says what is wrong."""

import bz2
import gzip
import lzma
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from titans.errors import TitansError

pd = pytest.importorskip("pandas")
frames = pytest.importorskip("titans.forecasting.frames")

NAN = float("nan")
HOURS = pd.date_range("2016-07-01", periods=24, freq="h")
NUMBERS = np.stack([np.arange(24) + 0.25, np.arange(24) * -3.5], 1)
CLEAN = pd.DataFrame(NUMBERS, HOURS, ["a", "b"])
TEXT = CLEAN.to_csv(index_label="date")
LINES = TEXT.splitlines()


def days(cells, name="v", form="%Y-%m-%d"):
    """A file of one row a day."""
    times = pd.date_range("2016-07-01", periods=len(cells)).strftime(form)
    return f"date,{name}\n" + "".join(f"{day},{cell}\n" for day, cell in zip(times, cells, strict=True))


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\r"),
        "\n\n" + TEXT.replace("\n", "\n\n"),
        gzip.compress(TEXT.encode()),
        bz2.compress(TEXT.encode()),
        lzma.compress(TEXT.encode("utf-16")),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.encode("utf-16"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        TEXT.encode("utf-32"),
        *(TEXT.replace(",", separator) for separator in (";", "\t", "|", " , ")),
    ],
)
def test_clean_files_need_no_notes(read, content):
    table = read(content)
    assert table.frame.index.equals(HOURS)
    assert table.frame.columns.tolist() == ["a", "b"]
    assert (table.frame.to_numpy() == NUMBERS).all()
    assert table.frequency == "h"
    assert table.notes == []
    assert table.frame.notna().to_numpy().all()


@pytest.mark.parametrize(
    ("content", "notes"),
    [
        (TEXT.replace(",", ";").replace(".", ","), ["commas within numbers were read as decimal points"]),
        ("\n".join([LINES[0], *LINES[:0:-1]]), ["rows were not in order"]),
        (TEXT + LINES[3] + "\n", ["rows were not in order", "1 row with the same time as another was averaged"]),
        (TEXT + "Total,5,6\n,7,8\n", ['2 rows without a time (such as "Total") were left out']),
        (TEXT.replace("date", "when"), ['the column "when" was taken as the time']),
        (TEXT.replace("date", ""), ['the column "Unnamed: 0" was taken as the time']),
        (TEXT.replace("\n", ",\n"), ["1 empty column left out: Unnamed: 3"]),
        (
            "\n".join([f"{LINES[0]},c", *(f"{line},text" for line in LINES[1:])]),
            ['without numbers left out: c ("text")'],
        ),
        ("\n".join([f",{LINES[0]}", *(f"{i},{line}" for i, line in enumerate(LINES[1:]))]), ["numbers the rows"]),
    ],
)
def test_what_was_cleaned_is_noted(read, content, notes):
    table = read(content)
    assert table.frame.index.equals(HOURS)
    assert (table.frame.to_numpy() == NUMBERS).all()
    assert len(table.notes) == len(notes)
    for said, expected in zip(table.notes, notes, strict=True):
        assert expected in said


@given(st.data())
def test_any_disorder_is_undone(tmp_path_factory, data):
    """Rows shuffled, doubled and dropped: what is left is exact, the rest missing."""
    kept = [0, *sorted(data.draw(st.sets(st.integers(1, 22), min_size=14))), 23]
    rows = data.draw(st.permutations(kept + data.draw(st.lists(st.sampled_from(kept), max_size=5))))
    path = tmp_path_factory.mktemp("x") / "x.csv"
    path.write_text("\n".join([LINES[0], *(LINES[1 + row] for row in rows)]))
    table = frames.read_csv(path)
    assert table.frequency == "h"
    assert table.frame.index.equals(HOURS)
    missing = np.setdiff1d(range(24), kept)
    expected = NUMBERS.copy()
    expected[missing] = NAN
    np.testing.assert_allclose(table.frame.to_numpy(), expected, rtol=1e-12)
    assert any("averaged" in note for note in table.notes) == (len(set(rows)) < len(rows))
    assert any("had no row" in note for note in table.notes) == (len(kept) < 24)


@pytest.mark.parametrize(
    ("cells", "expected", "notes"),
    [
        (["", 1, "NA", 2, "?"], [NAN, 1, NAN, 2, NAN], ["3 of 5 values are missing", "(v: 3)"]),
        ([1, "inf", 3, "-inf", 5], [1, NAN, 3, NAN, 5], ["2 infinite values treated as missing (v: 2)", "2 of 5"]),
        ([*range(19), "err"], [*range(19), NAN], ['1 entry of "v" that is no number (such as "err")', "1 of 20"]),
        (['"1,234.5"', 2, 3], [1234.5, 2, 3], ["separators of thousands"]),
        (['"0,5"', '"1,25"', 3], [0.5, 1.25, 3], ["decimal points"]),
        ([7, 7, 7], [7, 7, 7], ["1 column of one constant value: v"]),
        (["True", "False", "True"], [1, 0, 1], []),
        ([1e29, -1e-300, 10**25], [1e29, -1e-300, 1e25], []),
        ([1, 2, 123456789012345678901234567890], [1, 2, 123456789012345678901234567890.0], []),
    ],
)
def test_numbers(read, cells, expected, notes):
    table = read(days(cells))
    np.testing.assert_array_equal(table.frame["v"], expected)
    for note in notes:
        assert any(note in said for said in table.notes)
    assert bool(table.notes) == bool(notes)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ("$ 12,000|$ 950|$-1,010.50", [12000, 950, -1010.5]),
        ("30.0%|-12.5 %|7%", [30, -12.5, 7]),
        ("1 250 €|980 €|-12 000 €", [1250, 980, -12000]),
        ("£5|-£6|", [5, -6, NAN]),
    ],
)
def test_currencies_and_percent_are_left_out_and_said(read, cells, expected):
    table = read("date;v\n" + "".join(f"{day}.7.2016;{cell}\n" for day, cell in enumerate(cells.split("|"), start=1)))
    np.testing.assert_array_equal(table.frame["v"], expected)
    assert any(f'"v" were left out (such as "{cells.split("|")[0]}")' in note for note in table.notes)


def test_places_that_take_turns_may_be_series(read):
    """One series of three rooms, seen one after the other, reads as one series of all; the note says so."""
    times = pd.date_range("2024-01-01", periods=60, freq="10min")
    table = read("date,room,temperature\n" + "".join(f"{t},{'abc'[i % 3]},{i % 7}\n" for i, t in enumerate(times)))
    assert table.frequency == "10min"
    assert table.notes[1].startswith('if "room" tells series apart, rename it unique_id')
    minutes = np.tile([0, 7, 31], 20)  # of a step that leaves most empty
    times = pd.date_range("2024-01-01", periods=20, freq="h").repeat(3) + pd.to_timedelta(minutes, unit="min")
    with pytest.raises(TitansError, match=r'no regular step.* if "room" tells series apart, rename it unique_id'):
        read("date,room,v\n" + "".join(f"{t},{'abc'[i % 3]},{i % 7}\n" for i, t in enumerate(times)))


@pytest.mark.parametrize("cells", [["1.034,5", "12,5", "7"], ["1034,5", "12,5", "7"], ["1034.5", "12.5", "7"]])
def test_points_and_commas_between_semicolons(read, cells):
    table = read("date;v\n" + "".join(f"{day}.7.2016;{cell}\n" for day, cell in zip((1, 2, 3), cells, strict=True)))
    assert table.frame["v"].tolist() == [1034.5, 12.5, 7]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([950, "1.000", "1.025", 870], [950, 1000, 1025, 870]),
        (["1.200.000", "999", "12.500", "-3.750"], [1200000, 999, 12500, -3750]),
        (["1.000", "1.025", "0.950"], [1, 1.025, 0.95]),  # decimals, all of three digits
        (["1.125", "1.5", "2"], [1.125, 1.5, 2]),
        ([950, "1.025", "1.0"], [950, 1.025, 1]),
        ([950, "", "1.000", "NA"], [950, NAN, 1000, NAN]),
    ],
)
@pytest.mark.parametrize("separator", [",", ";"])
def test_points_between_thousands(read, cells, expected, separator):
    table = read(days(cells).replace(",", separator))
    np.testing.assert_array_equal(table.frame["v"], expected)
    grouped = 1000 in expected or 999 in expected
    assert any(note == 'points in "v" were read as separators of thousands' for note in table.notes) == grouped


def test_points_between_thousands_where_commas_are_decimal(read):
    text = "date;v;w\n" + "".join(f"0{day}.07.2016;{day}.125;0,{day}\n" for day in range(1, 8))
    table = read(text)
    assert table.frame["v"].tolist() == [1000 * day + 125 for day in range(1, 8)]
    assert table.frame["w"].tolist() == pytest.approx([day / 10 for day in range(1, 8)])


ENGLISH, GERMAN = (
    'commas in "v" were read as separators of thousands',
    'points in "v" were read as separators of thousands',
)
COMMAS, UNSURE = (
    "commas within numbers were read as decimal points",
    'points in "v" were read as decimal ones; if 1.250 is',
)


@pytest.mark.parametrize(
    ("cells", "expected", "notes"),
    [
        ("1,200 950 2,300 12,345 800 1,010", [1200, 950, 2300, 12345, 800, 1010], [ENGLISH]),
        ("1,234.50 950.25 2,100 12,345.75", [1234.5, 950.25, 2100, 12345.75], [ENGLISH]),
        ("1,234.50 1234 2,100", [1234.5, 1234, 2100], [ENGLISH]),
        ("1,234,567 2,345,678 950,001", [1234567, 2345678, 950001], [ENGLISH]),
        ("1,200 " + "950 " * 12 + "err", [1200, *[950] * 12, NAN], [ENGLISH, 'such as "err"']),
        ("1,25 950 2,300", [1.25, 950, 2.3], [COMMAS]),
        ("0,950 1,200 1,010", [0.95, 1.2, 1.01], [COMMAS]),
        ("1 1,250 2 1,125", [1, 1.25, 2, 1.125], [COMMAS]),
        ("1,234 950 2,001", [1.234, 950, 2.001], [COMMAS]),
        ("1.234,50 950,25 2.100", [1234.5, 950.25, 2100], [COMMAS, GERMAN]),
        ("950,25 2.100 1.575", [950.25, 2100, 1575], [COMMAS]),
        ("1.234.567 2.345.678 3.456.789", [1234567, 2345678, 3456789], [GERMAN]),
        ("1.234.567 950.000 3", [1234567, 950000, 3], [GERMAN]),
        ("1.250 950 0", [1250, 950, 0], [GERMAN]),
        ("1.200 " + "950 " * 12 + "err", [1200, *[950] * 12, NAN], [GERMAN, 'such as "err"']),
        ("1 1.250 2 1.125 3", [1, 1.25, 2, 1.125, 3], [UNSURE]),
        ("1.250 1.125 2.375", [1.25, 1.125, 2.375], []),
        ("1.25 950 2.300", [1.25, 950, 2.3], []),
        ("1234.5 2.300 950", [1234.5, 2.3, 950], []),
    ],
)
@pytest.mark.parametrize("separator", ["\t", ";", "|"])
def test_signs_within_numbers(read, cells, expected, notes, separator):
    """English and German thousands and decimals; what may be either is read plainly, and said."""
    table = read("\n".join(line.replace(",", separator, 1) for line in days(cells.split()).splitlines()))
    np.testing.assert_array_equal(table.frame["v"], expected)
    for note in notes:
        assert any(note in said for said in table.notes), table.notes
    assert bool(table.notes) == bool(notes)


def test_decimal_points_beside_say_what_commas_are(read):
    table = read("date\tv\tw\n" + "".join(f"2020-01-0{day}\t{day},234\t0.{day}\n" for day in range(1, 8)))
    assert table.frame["v"].tolist() == [1000 * day + 234 for day in range(1, 8)]
    assert table.frame["w"].tolist() == [day / 10 for day in range(1, 8)]


@pytest.mark.parametrize(
    ("above", "header", "notes"),
    [
        ("# made by hand, 2024\n#\n", "date,a,b", ["2 lines above the header that begin with # left out"]),
        ("\r\n  # one\r\n\r\n", "date,a,b", ["1 line above the header that begins with # left out"]),
        ("# Export\n", "#date,a,b", ["1 line above the header that begins with # left out"]),
        ("", "# date,a,b", []),
    ],
)
def test_comments_above_the_header(read, above, header, notes):
    table = read(above + "\n".join([header, *LINES[1:]]))
    assert table.frame.index.equals(HOURS)
    assert table.frame.columns.tolist() == ["a", "b"]
    assert (table.frame.to_numpy() == NUMBERS).all()
    assert table.notes == notes
    with pytest.raises(TitansError, match=f"Expected 3 fields in line {26 + above.count(chr(10))}, saw 4"):
        read(above + "\n".join([header, *LINES[1:], "2016-07-02,1,2,3"]))


@pytest.mark.parametrize("name", ["id", "Index", "row", "Unnamed: 0", "nr"])
@pytest.mark.parametrize("start", [0, 1])
def test_row_numbers_are_no_channel(read, name, start):
    table = read("\n".join([f"{name},{LINES[0]}", *(f"{i},{line}" for i, line in enumerate(LINES[1:], start))]))
    assert table.frame.columns.tolist() == ["a", "b"]
    assert table.notes == [f'the column "{name}" numbers the rows and was left out']


@pytest.mark.parametrize(
    "header", ["store,date,sales", "unique_id,timestamp,value", "shop_id,ds,y", "sales,date,store", "id,week,units"]
)
@pytest.mark.parametrize("names", [("north", "south"), (7, 12)])
def test_series_below_each_other(read, header, names):
    """Rows of one time are never averaged where a column tells them apart."""
    rows = [
        (day, name, level + i) for name, level in zip(names, (100, 500), strict=True) for i, day in enumerate(HOURS)
    ]
    name_first, columns = not header.startswith("sales"), header.split(",")
    cells = [f"{name},{day},{value}" if name_first else f"{value},{day},{name}" for day, name, value in rows]
    table = read("\n".join([header, *cells]))
    assert table.frame.columns.tolist() == [str(name) for name in names]
    assert table.frame.to_numpy().T.tolist() == [[level + i for i in range(24)] for level in (100, 500)]
    key = columns[0 if name_first else 2]
    assert table.notes[-1] == f'many times have several rows, one for each value of "{key}": each is a series'
    assert len(table.notes) == (2 if "week" in header else 1)  # no usual name of a time


@pytest.mark.parametrize(
    ("header", "row", "reason"),
    [
        (
            "date,store,sales,price",
            "{day},{name},{i},{i}.5",
            'the column "store" tells apart: .*there are sales, price',
        ),
        (
            "date,a",
            "{day},{i}",
            "no single column tells these apart: name the series of each row in a column unique_id",
        ),
        ("date,kind,a", "{day},same,{i}", "no single column tells these apart"),
        ("date,store", "{day},{name}", "there is no other column of numbers"),
    ],
)
def test_series_that_cannot_be_told_apart_are_refused(read, header, row, reason):
    rows = [
        row.format(day=day, name=name, i=i % 5 + 9 * (name == "north"))
        for name in ("north", "south")
        for i, day in enumerate(HOURS)
    ]
    with pytest.raises(TitansError, match=reason) as refused:
        read("\n".join([header, *rows]))
    assert "many times have several rows (first 2016-07-01 00:00:00)" in str(refused.value)


def test_a_series_that_began_late_is_not_averaged_either(read):
    rows = [f"{name},{day},{i}" for name, begin in (("old", 0), ("new", 18)) for i, day in enumerate(HOURS[begin:])]
    table = read("\n".join(["store,date,sales", *rows]))
    assert table.frame["old"].tolist() == list(range(24))
    np.testing.assert_array_equal(table.frame["new"], [NAN] * 18 + list(range(6)))


@pytest.mark.parametrize(
    ("name", "a_day"),
    [("order", 3), ("customer", 3), ("number", 3), ("item", 3), ("order", 1.3), ("customer", 1.3)],
)
def test_single_transactions_are_no_series(read, name, a_day):
    rng = np.random.default_rng(0)
    rows = int(60 * a_day)
    buyers = {
        "order": [f"T{row:05}" for row in range(rows)],
        "customer": [f"c{number}" for number in rng.integers(0, 240, rows)],
        "number": rng.integers(10000, 11000, rows),
        "item": [f"i{number}" for number in rng.integers(1, 40, rows)],
    }[name]
    dates = pd.date_range("2023-01-02", periods=60)[np.arange(rows) % 60]
    frame = pd.DataFrame({"date": dates, name: buyers, "amount": rng.gamma(3, size=rows).round(2)})
    with pytest.raises(TitansError, match=f'the values of "{name}".* to be series .*: add up the rows of each time'):
        read(frame.to_csv(index=False))


def test_series_with_gaps_are_still_series(read):
    rows = [(day, item, 10 * i) for day in HOURS for i, item in enumerate("xyz") if (day.hour + i + 1) % 4]
    table = read(pd.DataFrame(rows, columns=["date", "item", "sales"]).to_csv(index=False))
    assert table.frame.columns.tolist() == ["x", "y", "z"]
    assert table.frame.mean().tolist() == [0, 10, 20]
    assert table.frame.notna().to_numpy().mean() == pytest.approx(0.75)


def test_two_columns_name_the_series_together(read):
    rows = [f"{store},{day},{item},{i}" for store in "ns" for item in "xyz" for i, day in enumerate(HOURS)]
    table = read("\n".join(["store,date,item,sales", *rows]))
    assert table.frame.columns.tolist() == ["n/x", "n/y", "n/z", "s/x", "s/y", "s/z"]
    assert (table.frame.to_numpy() == np.arange(24)[:, None]).all()


def test_a_file_that_holds_its_rows_twice(read):
    table = read(TEXT + "\n".join(LINES[1:]) + "\n")
    assert (table.frame.to_numpy() == NUMBERS).all()


def test_series_that_do_not_overlap_are_refused(read):
    rows = [f"{name},{year}-07-{day:02},{day}" for name, year in (("old", 2016), ("new", 2020)) for day in range(1, 20)]
    with pytest.raises(TitansError, match=r'do not overlap in time \("new" begins at 2020-07-01 00:00:00, all before'):
        read("\n".join(["unique_id,ds,y", *rows]))


FORMS = ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y %H:%M", "%Y/%m/%d %H:%M", "%d-%b-%Y", "%b %d %Y", "%d %B %Y", "%d/%m/%y"]
FORMS += ["%m/%d/%Y %I:%M %p", "%Y-%m-%dT%H:%M:%S.%f", "%Y%m%d"]


@pytest.mark.parametrize("form", FORMS)
def test_dates_in_many_forms(read, form):
    table = read(days(range(40), form=form))
    assert table.frame.index.equals(pd.date_range("2016-07-01", periods=40))
    assert table.frequency == "D"
    assert table.notes == []


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%dT%H:%M:%S+00:00"])
def test_dates_in_utc(read, form):
    table = read(days(range(40), form=form))
    assert table.frame.index.equals(pd.date_range("2016-07-01", periods=40, tz="UTC"))
    assert table.notes == []


def test_the_order_of_day_and_month_is_what_gives_a_regular_step(read):
    months = pd.date_range("2016-01-01", periods=24, freq="MS")
    table = read("date,v\n" + "".join(f"{month:%d/%m/%Y},1.5\n" for month in months))
    assert table.frame.index.equals(months)
    assert "read as day/month" in table.notes[0]
    table = read("date,v\n" + "".join(f"{day:02d}.07.2016,{day}\n" for day in range(1, 10)))
    assert table.frame.index.equals(pd.date_range("2016-07-01", periods=9))


@pytest.mark.parametrize(
    ("content", "options", "index", "frequency"),
    [
        ("t,v\n0,1\n1,2\n2,4\n", {}, [0, 1, 2], 1),
        ("v,Time\n5,10\n6,20\n7,40\n", {}, [10, 20, 30, 40], 10),
        ("v,t\n5,3\n6,4\n7,5\n", {"time_column": "T"}, [3, 4, 5], 1),
        ("timestamp,v\n1467331200,1\n1467334800,2\n1467338400,3\n", {}, HOURS[:3].tolist(), "h"),
        ("a,when,v\n5,2016-07-01,\n6,2016-07-02,3\n7,2016-07-03,4\n", {}, None, "D"),
        ("a,when,v\n,2016-07-01,1\n6,2016-07-02,3\n7,2016-07-03,4\n", {}, None, "D"),
        ("year,v\n1990,5\n1991,6\n1992,7\n", {}, [1990, 1991, 1992], 1),
        ("Date;Time;v\n01/07/2016;00.00.00;1\n01/07/2016;01.00.00;2\n01/07/2016;02.00.00;3\n", {}, None, "h"),
    ],
)
def test_other_times(read, content, options, index, frequency):
    table = read(content, **options)
    assert table.frequency == frequency
    if index:
        assert table.frame.index.tolist() == index


def test_names(read):
    table = read("date,a,a,,a_2\n2016-07-01,1,2,3,4\n2016-07-02,5,6,7,8\n2016-07-03,9,10,11,12\n")
    assert table.frame.columns.tolist() == ["a", "a.1", "Unnamed: 3", "a_2"]
    assert table.frame.iloc[1].tolist() == [5, 6, 7, 8]
    assert read(TEXT.replace("a,b", "Größe,b").encode("cp1252")).frame.columns.tolist() == ["Größe", "b"]
    assert read(TEXT.replace("a,b", "0,1")).frame.columns.tolist() == ["0", "1"]


REFUSED = {
    "": "the file is empty",
    " \n\n": "the file is empty",
    "date,a,b\n": "no row of data",
    "\n".join(LINES[1:]): "no header line",
    "date\n2016-07-01\n": "only one column",
    "\n".join(LINES[:3]): "only 2 times: expected at least 3",
    "\n".join([LINES[0], *[LINES[1]] * 9]): "only 1 time",
    "a,b,c\n3,1,2\n2,3,4\n1,4,5\n": "no time column among a, b, c",
    days(range(9)).replace("2016-07-0", "x"): 'the column "date" is no time',
    days(["x"] * 9): "no column of numbers",
    days([""] * 9): "no column holds a number",
    days([1, 1e300, 2]): 'the column "v" holds 1e+300',
    TEXT.replace(".", ","): "3 column names but more cells in its lines",
    TEXT + "2016-07-02,1,2,3\n": "Expected 3 fields in line 26, saw 4",
    TEXT + '2016-07-02,"1,2\n': "do not fit its header",
    "date,v\n" + "".join(f"2016-07-01 00:00:{s:02d},{s}\n" for s in (0, 1, 5, 7, 19, 33, 34, 55)): "no regular step",
    TEXT + "2106-07-01,1,2\n": "no regular step",
    TEXT + "\0": "not a text file",
}
BROKEN = {
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR": "not a text file",
    b"PK\x03\x04" + bytes(30): "Excel workbook",
    TEXT.encode("utf-16-le"): "not a text file",
    TEXT.encode("utf-16")[:-1]: "not a text file",
    gzip.compress(TEXT.encode())[:-20]: "cannot decompress the file",
    b"date,\x81\n1,2\n": "not a text file",
}


@pytest.mark.parametrize(("content", "reason"), [*REFUSED.items(), *BROKEN.items()])
def test_what_cannot_be_read_is_refused_in_one_sentence(read, content, reason):
    with pytest.raises(TitansError) as refused:
        read(content)
    message = str(refused.value)
    assert "some.data: " in message
    assert reason.replace("\\", "") in message
    assert "\n" not in message


def test_a_wrong_path_or_column_is_refused(read, tmp_path):
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(TitansError, match="cannot read the file"):
            frames.read_csv(path)
    with pytest.raises(TitansError, match='no column "x": expected one of date, a, b'):
        read(TEXT, time_column="x")
    with pytest.raises(TitansError, match='"a" is no time'):
        read(TEXT, time_column="a")


@given(
    st.integers(3, 30).flatmap(
        lambda steps: st.lists(st.lists(st.floats(-1e30, 1e30), min_size=steps, max_size=steps), min_size=1, max_size=4)
    ),
    st.sampled_from(["15min", "h", "D", "B", "MS", 1, 7]),
)
def test_wide_to_long_to_file_and_back(tmp_path_factory, columns, frequency):
    steps = len(columns[0])
    names = ["y", "s1", "unique", "x"][: len(columns)]
    if isinstance(frequency, int):
        index = pd.RangeIndex(5, 5 + steps * frequency, frequency)
    else:
        index = pd.date_range("2016-02-01", periods=steps, freq=frequency)
    path = tmp_path_factory.mktemp("x") / "x.csv"
    pd.DataFrame(np.array(columns).T, index, names).to_csv(path, index_label="ds")
    table = frames.read_csv(path)
    assert (table.frame.to_numpy() == np.array(columns).T).all()
    assert (table.frame.index == index).all()
    long = frames.to_long(table)
    assert long.columns.tolist() == ["unique_id", "ds", "y"]
    assert long["unique_id"].tolist() == [name for name in names for _ in range(steps)]
    assert (long["y"].to_numpy() == np.array(columns).ravel()).all()
    pd.testing.assert_frame_equal(frames.from_long(long).frame, table.frame)
    shuffled = long.sample(frac=1, random_state=steps)
    back = frames.from_long(shuffled)
    pd.testing.assert_frame_equal(back.frame[names], table.frame)
    shuffled.to_csv(path, index=False)
    pd.testing.assert_frame_equal(frames.read_csv(path).frame[names], table.frame)


def test_long_files(read):
    text = "".join(f"{name},2016-07-{day:02d},{day}\n" for name in ("NA", "007", "x") for day in range(1, 5))
    table = read("unique_id,ds,y\n" + text + "x,2016-07-05,5\n")
    assert table.frame.columns.tolist() == ["NA", "007", "x"]
    np.testing.assert_array_equal(table.frame, [[1] * 3, [2] * 3, [3] * 3, [4] * 3, [NAN, NAN, 5]])
    assert "2 of 15 values are missing" in table.notes[0]


def test_ten_thousand_rows_are_read_at_once(tmp_path):
    """In a small part of the two minutes that a forecast may take."""
    rng = np.random.default_rng(0)
    expected = pd.DataFrame(
        rng.normal(size=(10000, 7)), pd.date_range("2016-07-01", periods=10000, freq="h"), list("abcdefg")
    )
    expected.to_csv(tmp_path / "x.csv", index_label="date")
    start = time.perf_counter()
    table = frames.read_csv(tmp_path / "x.csv")
    assert time.perf_counter() - start < 2
    assert (table.frame.to_numpy() == expected.to_numpy()).all()


def test_without_pandas_the_extra_is_named():
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "import titans, titans.forecasting\n"
        "try: import titans.forecasting.frames\n"
        "except titans.TitansError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "titans-lm[forecast]"' in done.stdout


def below_each_other(shift):
    """Three series of 100 hours, each stamp of each series moved by `shift(series, hour)` seconds."""
    hours = pd.date_range("2025-03-01", periods=100, freq="h")
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "unique_id": name,
                    "ds": hours + pd.to_timedelta([shift(number, hour) for hour in range(100)], unit="s"),
                    "y": np.arange(100.0) + 1000 * number,
                }
            )
            for number, name in enumerate("abc")
        ]
    )


def test_what_jitters_in_one_series_is_no_step_of_all():
    table = frames.from_long(below_each_other(lambda series, hour: (7 * hour + 13 * series) % 60))
    assert table.frequency == "h"
    assert table.frame.shape == (100, 3)
    assert table.frame["b"].tolist() == [1000.0 + hour for hour in range(100)]
    assert table.frame.notna().to_numpy().all()


def test_series_at_different_times_of_one_step_are_refused():
    with pytest.raises(TitansError, match=r"follow one step \(h\) at different times, as 2025-03-01 00:00:00 and"):
        frames.from_long(below_each_other(lambda series, hour: 600 * series))
