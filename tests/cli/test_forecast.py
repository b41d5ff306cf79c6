"""`titans forecast`: what it writes, and each bad file in one sentence, with nothing written."""

import json
import math
import re

import pandas as pd
import pytest

from titans.forecasting import forecast_report


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(forecast_report, "IN_MINUTES", {"train_windows": 1, "epochs": 1})


def rows(count, value=lambda i: f"{math.sin(i / 4):.4f},{i % 7}"):
    return [f"2020-01-{1 + i // 24:02} {i % 24:02}:00,{value(i)}" for i in range(count)]


@pytest.fixture
def file(tmp_path):
    def write(lines, header="date,a,b", name="data.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_bytes(("\n".join([header, *lines]) + "\n").encode(encoding))
        return path

    return write


def test_report_and_numbers(titans, file, tmp_path):
    out, csv = tmp_path / "new" / "report.html", tmp_path / "next.csv"
    lines = rows(120)
    lines[50] = lines[50].split(",")[0] + ",,3"
    printed = titans("forecast", file(lines), "--horizon", 8, "--out", out, "--csv", csv).stdout
    frame = pd.read_csv(csv, parse_dates=["ds"])
    name = "TitansForecaster"
    assert list(frame.columns) == ["unique_id", "ds", name, f"{name}-lo-80", f"{name}-hi-80"]
    assert list(frame["unique_id"]) == ["a"] * 8 + ["b"] * 8
    assert list(frame["ds"][:8]) == list(pd.date_range("2020-01-06 00:00", periods=8, freq="h"))
    assert (frame[f"{name}-lo-80"] <= frame[name]).all()
    assert (frame[name] <= frame[f"{name}-hi-80"]).all()
    page = out.read_text(encoding="utf-8")
    assert "note: 1 of 240 values are missing" in printed
    assert "1 of 240 values are missing" in page
    verdict = next(line for line in printed.splitlines() if "seasonal-naive" in line)
    assert verdict in page
    assert f"written: {out}, {csv}" in printed
    assert not list(tmp_path.rglob("*.unfinished"))


def test_columns_and_seed(titans, file, tmp_path):
    path, csv = file(rows(120), header='date,a,"b,c"'), tmp_path / "next.csv"
    found = {}
    for columns, seed in (("a", 0), ("a", 0), ("a", 1), ("b,c", 0)):
        command = ("forecast", path, "--horizon", 8, "--columns", columns, "--seed", seed, "--csv", csv)
        titans(*command, "--out", tmp_path / "report.html")
        found.setdefault((columns, seed), set()).add(csv.read_text())
    assert [len(texts) for texts in found.values()] == [1, 1, 1]
    assert next(iter(found["b,c", 0])).splitlines()[1].startswith('"b,c"')


@pytest.mark.parametrize(
    ("lines", "header", "sentence"),
    [
        ([], "", "the file is empty"),
        ([], "date,a", "there is a header line but no row of data"),
        (rows(10), "date,a,b", "there are 10 steps of time, but a forecast of 8 and its back-test need at least 20"),
        ([f"2020-01-0{i},x" for i in range(1, 9)], "date,a", "no column of numbers"),
        ([f"{math.exp(i):.3f},1" for i in range(40)], "x,a", "time"),
        ([f"{1900 + i**2}-01-0{1 + i % 7},1" for i in range(20)], "date,a", "follow no regular step"),
        (rows(40, lambda i: f"1e300,{i}"), "date,a,b", "1e+300"),
        (rows(40, lambda i: ","), "date,a,b", "number"),
    ],
)  # fmt: skip
def test_bad_files(titans, file, tmp_path, lines, header, sentence):
    path, out = file(lines, header) if header else tmp_path / "data.csv", tmp_path / "out.html"
    path.touch()
    result = titans("forecast", path, "--horizon", 8, "--out", out, "--csv", tmp_path / "out.csv", status=2)
    assert sentence in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert [p.name for p in tmp_path.iterdir()] == ["data.csv"]


def test_binary_and_missing_files(titans, tmp_path):
    (tmp_path / "data.csv").write_bytes(b"PK\x03\x04" + bytes(range(256)))
    for name in ("data.csv", "gone.csv"):
        result = titans("forecast", tmp_path / name, "--out", tmp_path / "out.html", status=2)
        assert result.stderr.startswith(f"error: {tmp_path / name}: ")
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--columns", "a,z"), "there is no column of numbers called z: there are a, b"),
        (("--time-column", "when"), "when"),
        (("--variant", "x"), "variant='x' is unknown"),
        (("--horizon", "0"), "--horizon"),
        (("--horizon", "70"), "or a horizon of at most 58"),
        (("--context-length", "3"), "--context-length"),
        (("--context-length", "100000"), "a window of 100,000 steps is longer than the series, which have 120"),
        (("--minutes", "nan"), "--minutes"),
        (("--minutes", "inf"), "minutes is inf, expected a finite number"),
    ],
)
def test_bad_options(titans, file, tmp_path, options, sentence):
    out = tmp_path / "out.html"
    result = titans("forecast", file(rows(120)), "--horizon", 8, *options, "--out", out, status=2)
    assert sentence in result.stderr
    assert not out.exists()


def test_targets_are_checked_first(titans, tmp_path):
    gone = tmp_path / "gone.csv"  # would be refused, later
    assert "is a folder: give a file" in titans("forecast", gone, "--out", tmp_path, status=2).stderr
    same = ("--out", tmp_path / "a", "--csv", tmp_path / "a")
    assert "give different files" in titans("forecast", gone, *same, status=2).stderr
    result = titans("forecast", gone, "--out", tmp_path / "a", "--csv", gone, status=2)
    assert "is the file to read: give another one" in result.stderr
    assert "cannot be written" in titans("forecast", gone, "--out", "/proc/a.html", status=2).stderr


@pytest.mark.parametrize(
    ("lines", "header", "encoding", "note"),
    [
        (rows(100), "date,grün,b", "cp1252", "read as Windows-1252"),
        (rows(100), "date,grün,b", "utf-16", None),
        (rows(100)[::-1], "date,a,b", "utf-8", "were sorted"),
        (rows(100, lambda i: f"word,{i % 5}"), "date,a,b", "utf-8", "without numbers left out: a"),
        (rows(100, lambda i: f"3,{i % 5}"), "date,a,b", "utf-8", "of one constant value: a"),
        ([line for i, line in enumerate(rows(100)) if i not in (40, 41)], "date,a,b", "utf-8", "had no row"),
    ],
)
def test_handled_and_said(titans, file, tmp_path, lines, header, encoding, note):
    out = tmp_path / "out.html"
    printed = titans("forecast", file(lines, header, encoding=encoding), "--horizon", 8, "--out", out).stdout
    notes = re.findall("^note: (.*)$", printed, re.M)
    assert (note is None) == (not notes)
    if note is not None:
        assert any(note in said for said in notes)
        page = out.read_text(encoding="utf-8")
        assert all(json.dumps(said, ensure_ascii=False)[1:-1] in page for said in notes if '"' not in said)


def _lines(form, more=lambda i: i % 7 * 10, **times):
    """Lines of a file: the time, in a form, and what comes after it."""
    stamps = pd.date_range(**{"start": "2023-01-01", "periods": 60, **times})
    return [stamp.strftime(form).format(q=stamp.quarter, i=i) + str(more(i)) for i, stamp in enumerate(stamps)]


_MONTHS = pd.date_range("2023-01-01", periods=60, freq="MS", tz="Europe/Berlin")
_DAYS = _lines("%Y-%m-%d,")
_NEXT_DAYS = ("2023-03-02", "2023-03-09")
MESSY = {  # header, lines, and the first and the last time of the forecast
    "quarters": ("Quarter,Sales", _lines("%Y Q{q},", freq="QS"), ("2038-01-01", "2039-10-01")),
    "weeks": ("Week;Units", _lines("%G-W%V;", start="2023-01-02", freq="W-MON"), ("2024-02-26", "2024-04-15")),
    "year and month": ("Year,Month,Sales", _lines("%Y,%b,", freq="MS"), ("2028-01-01", "2028-08-01")),
    "two columns": (
        "Datum;Uhrzeit;Last", _lines("%d.%m.%Y;%H:%M;", freq="15min"), ("2023-01-01 15:00", "2023-01-01 16:45")
    ),
    "midnights": ("t,v", [f"{t.isoformat()},{t.month}" for t in _MONTHS], ("2028-01-01", "2028-08-01")),
    "delays": (
        "t,v", _lines("%Y-%m-%d 19:00:", lambda i: f"{i * 7 % 50:02},{i % 7}"), ("2023-03-02 19:00", "2023-03-09 19:00")
    ),
    "thousands": ("date;v", _lines("%d.%m.%Y;", lambda i: "950" if i % 2 else "1.050"), _NEXT_DAYS),
    "comment and row number": ("# by hand\n\nid,when,v", _lines("{i},%d/%m/%Y,"), _NEXT_DAYS),
    "two stores": ("store,date,sales", [f"{name},{line}" for name in "ns" for line in _DAYS], _NEXT_DAYS),
    "since 1970": (
        "t,v", [f"{1672531200 + 3600 * i},{i % 7}" for i in range(60)], ("2023-01-03 12:00", "2023-01-03 19:00")
    ),
    "a new series": (
        "unique_id,ds,y", [f"a,{line}" for line in _DAYS] + [f"b,{line}" for line in _DAYS[-3:]], _NEXT_DAYS
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MESSY)
def test_messy_files_go_the_whole_way(titans, file, tmp_path, kind):
    header, lines, (first, last) = MESSY[kind]
    csv = tmp_path / "next.csv"
    printed = titans("forecast", file(lines, header), "--horizon", 8, "--out", tmp_path / "a.html", "--csv", csv).stdout
    frame = pd.read_csv(csv, parse_dates=["ds"])
    for _, series in frame.groupby("unique_id"):
        assert [series.ds.iloc[0], series.ds.iloc[-1]] == [pd.Timestamp(first), pd.Timestamp(last)]
        assert len(series) == 8
    values = frame["TitansForecaster"]
    assert values.notna().all()
    assert frame.unique_id.nunique() == (2 if kind == "two stores" else 1)
    assert values.between(800, 1200).all() or kind != "thousands"
    assert "written: " in printed
    assert ("1 column with too few values left out: b" in printed) == (kind == "a new series")
