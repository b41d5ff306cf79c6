"""An evaluation goes on where it was interrupted, and never mixes results of two settings."""

import json

import pytest

from titans.errors import TitansError
from titans.evaluation.result_store import ResultStore

SETTINGS = {"model": "m", "lengths": (1, 2), "seed": 0}


def test_results_are_there_the_next_time(tmp_path):
    fields = ("text", "correct", "pair")
    store = ResultStore(tmp_path / "new", SETTINGS, fields)
    store.add("a", {"text": "é\n", "correct": True, "pair": ()})
    store.add("b", {"text": "", "correct": False, "pair": (1, 2)})
    assert store.get("b") == {"text": "", "correct": False, "pair": [1, 2]}
    again = ResultStore(tmp_path / "new", {**SETTINGS, "lengths": [1, 2]}, fields)
    assert (again.get("a"), again.get("b"), again.get("c")) == (
        {"text": "é\n", "correct": True, "pair": []},
        {"text": "", "correct": False, "pair": [1, 2]},
        None,
    )
    assert len(again) == 2
    assert ("a" in again, "c" in again) == (True, False)


def test_every_way_to_tear_the_last_line_loses_only_it(tmp_path):
    ResultStore(tmp_path, SETTINGS, "x").add("a", {"x": 1})
    path = tmp_path / "results.jsonl"
    first = path.read_bytes()
    ResultStore(tmp_path, SETTINGS, "x").add("b", {"x": 2})
    whole = path.read_bytes()
    for end in range(len(first), len(whole)):
        path.write_bytes(whole[:end])
        store = ResultStore(tmp_path, SETTINGS, "x")
        assert (store.get("a"), store.get("b")) == ({"x": 1}, None)
        store.add("b", {"x": 2})
        assert path.read_bytes() == whole


def test_other_settings_are_refused(tmp_path):
    ResultStore(tmp_path, SETTINGS, ()).add("a", {})
    for other, names in (({**SETTINGS, "seed": 1}, "seed"), ({"model": "m"}, "lengths, seed")):
        with pytest.raises(TitansError, match=rf"other settings \({names};"):
            ResultStore(tmp_path, other, ())
    assert ResultStore(tmp_path, SETTINGS, ()).get("a") == {}


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"key": "a"}', '{"key": "a", "result": 3}'])
def test_damage_is_named(tmp_path, line):
    ResultStore(tmp_path, SETTINGS, ())
    (tmp_path / "results.jsonl").write_text(line + "\n" + json.dumps({"key": "b", "result": {}}) + "\n")
    with pytest.raises(TitansError, match="line 1 is damaged"):
        ResultStore(tmp_path, SETTINGS, ())


@pytest.mark.parametrize("result", [{}, {"x": 1}])
def test_a_result_without_a_field_is_damage(tmp_path, result):
    ResultStore(tmp_path, SETTINGS, ("x", "y")).add("b", {"x": 1, "y": 2})
    ResultStore(tmp_path, SETTINGS, ("x", "y")).add("a", result)
    with pytest.raises(TitansError, match=r"results.jsonl, line 2 is damaged: delete that line"):
        ResultStore(tmp_path, SETTINGS, ("x", "y"))


def test_settings_that_are_lost_or_damaged_are_refused(tmp_path):
    ResultStore(tmp_path, SETTINGS, ()).add("a", {})
    (tmp_path / "settings.json").write_text("3")
    with pytest.raises(TitansError, match="damaged"):
        ResultStore(tmp_path, SETTINGS, ())
    (tmp_path / "settings.json").unlink()
    with pytest.raises(TitansError, match="says what they are"):
        ResultStore(tmp_path, SETTINGS, ())


def test_without_a_folder_results_are_in_memory():
    store = ResultStore(None, SETTINGS, "x")
    store.add("a", {"x": 1})
    assert store.get("a") == {"x": 1}
