"""The evaluation counts what a known reader finds, and goes on where it was interrupted."""

import dataclasses
import json
import re

import pytest

from titans.data import byte_tokenizer
from titans.data.books import Words
from titans.data.ruler import make_ruler_task
from titans.errors import TitansError
from titans.evaluation.intervals import wilson
from titans.evaluation.ruler import references_found, run_ruler
from titans.evaluation.streaming_lm import StreamingLM

pytest.importorskip("wonderwords", reason="wonderwords is not installed")
WORDS = Words(("Some", "words.", "No", "more."), (0, 2), gutenberg=True)


class Half:
    """Reads bytes, and finds what lies in the first half of the text, in capitals."""

    name, longest, write = "half", None, "gated"

    def __init__(self):
        self.asked = []

    def count(self, text):
        return len(text.encode())

    def digest(self):
        return "half"

    def answer(self, prompt, max_new_tokens, progress):
        progress(0.5)
        assert max_new_tokens == 128
        self.asked.append(prompt)
        key = prompt.split(" for ")[-1].removesuffix(" mentioned in the provided text is")
        at = prompt.index(f"s for {key} is: ")
        value = prompt[at:].split(": ")[1].split(".")[0]
        middle = (prompt.index("\n") + prompt.rindex("\n")) / 2
        return f" It is {value.upper()}." if at < middle else " I forgot."


@pytest.mark.parametrize(
    ("text", "references", "expected"),
    [
        (" 1234567.", ["1234567"], 1),
        ("It is 91234567, or 12345678", ["1234567"], 1),  # a substring, whatever stands around it
        ("123 4567", ["1234567"], 0),
        ("1,234,567", ["1234567"], 0),
        ("", ["1234567"], 0),
        ("ABCD-EF", ["abcd-ef"], 1),
        ("a, b", ["a", "B", "c", "d"], 0.5),
    ],
)
def test_metric(text, references, expected):
    assert references_found(text, references) == expected


def test_counts_what_is_found_by_depth_and_length(tmp_path):
    result = run_ruler(Half(), ["pk", "w"], [2000, 3000], WORDS, samples=60, folder=tmp_path)
    assert len(result.answers) == 240
    for task in ("pk", "w"):
        for length in (2000, 3000):
            found = [a for a in result.of(task, length) if a.score]
            assert max(a.depth for a in found) < 60
            assert min(a.depth for a in result.of(task, length) if not a.score) > 40
            assert result.accuracy(task, length) == (len(found) / 60, *wilson(len(found), 60))
            bands = [result.band(task, length, band) for band in range(10)]
            assert sum(cell[1] for cell in bands if cell) == 60
            assert {cell[0] for cell in (*bands[:4], *bands[6:]) if cell} == {0.0, 1.0}
            assert 0.3 < len(found) / 60 < 0.7
    result.save(tmp_path)
    written = json.loads((tmp_path / "ruler.json").read_text())
    assert [(cell["task"], cell["length"]) for cell in written["cells"]] == [
        ("pk", 2000), ("pk", 3000), ("w", 2000), ("w", 3000)
    ]  # fmt: skip
    assert written["cells"][2]["accuracy"] == result.accuracy("w", 2000)[0]
    assert "books of Project Gutenberg" in written["deviations"][0]
    assert "60 samples, not 500" in written["deviations"]
    assert written["write"] == "gated"
    assert (tmp_path / "ruler.png").read_bytes().startswith(b"\x89PNG")


def test_goes_on_after_a_torn_line_and_takes_more(tmp_path):
    first = Half()
    whole = run_ruler(first, ["pk"], [1500], samples=6, folder=tmp_path)
    path = tmp_path / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:-4])
    again = Half()
    assert run_ruler(again, ["pk"], [1500], samples=6, folder=tmp_path) == whole
    assert again.asked == first.asked[3:]
    more = Half()
    result = run_ruler(more, ["pk", "n"], [1500, 1600], WORDS, samples=7, folder=tmp_path)
    assert len(more.asked) == 4 * 7 - 6
    assert result.of("pk", 1500)[:6] == list(whole.answers)


def test_other_settings_are_refused(tmp_path):
    run_ruler(Half(), ["pk"], [1500], samples=1, folder=tmp_path)
    with pytest.raises(TitansError, match="seed"):
        run_ruler(Half(), ["pk"], [1500], samples=1, seed=1, folder=tmp_path)
    other = Half()
    other.digest = lambda: "other"
    with pytest.raises(TitansError, match="model"):
        run_ruler(other, ["pk"], [1500], samples=1, folder=tmp_path)
    asked = Half()
    words = Words(("Other", "words."), (0,), gutenberg=False)
    run_ruler(Half(), ["n"], [1500], WORDS, samples=1, folder=tmp_path)
    run_ruler(asked, ["n"], [1500], words, samples=1, folder=tmp_path)  # another text makes other questions
    assert len(asked.asked) == 1


def test_rulers_own_essays_are_no_deviation():
    essays = dataclasses.replace(WORDS, gutenberg=False, essays=True)
    told, untold = (run_ruler(Half(), ["n"], [1500], words, samples=1).deviations for words in (WORDS, essays))
    assert told[1:] == untold
    assert "in place of RULER's essays" in told[0]


def test_tasks_without_one_needle_have_no_depths_and_score_by_shares(tmp_path):
    class Some(Half):
        def answer(self, prompt, max_new_tokens, progress):
            assert max_new_tokens == (30 if prompt.endswith("they are: ") else 128)
            values = re.findall(r"One of the special magic numbers for .*? is: (\d+)\.", prompt)
            return " ".join(values[:3])  # three of four

    asked = ["niah_multivalue", "vt", "niah_multikey_1"], [2500], WORDS
    result = run_ruler(Some(), *asked, samples=5, folder=tmp_path)
    assert [answer.score for answer in result.of("niah_multivalue", 2500)] == [0.75] * 5
    assert result.accuracy("niah_multivalue", 2500) == (0.75, *wilson(3.75, 5))
    assert result.accuracy("vt", 2500)[0] == 0
    assert [result.has_depths(task) for task in result.tasks] == [False, False, True]
    assert {answer.score for answer in result.of("niah_multikey_1", 2500)} <= {0.0, 1.0}
    result.save(tmp_path)
    cells = json.loads((tmp_path / "ruler.json").read_text())["cells"]
    assert [cell["depths"] == [None] * 10 for cell in cells] == [True, True, False]
    assert (
        run_ruler(Some(), ["niah_multivalue", "vt", "niah_multikey_1"], [2500], WORDS, samples=5, folder=tmp_path)
        == result
    )
    only = run_ruler(Some(), ["vt"], [2500], samples=1)
    only.save(tmp_path / "vt")  # a picture without heat maps
    assert (tmp_path / "vt" / "ruler.png").read_bytes().startswith(b"\x89PNG")


def test_rulers_names_are_the_same_tasks():
    by_its_name, by_ours = (run_ruler(Half(), [name], [1500], samples=2) for name in ("niah_single_1", "pk"))
    assert by_its_name == by_ours


def test_progress_follows_the_tokens():
    seen = []
    run_ruler(Half(), ["pk"], [1000, 3000], samples=2, progress=lambda share, what: seen.append((share, what)))
    shares = [0, 0.5, 1, 1.5, 2, 3.5, 5, 6.5]  # in thousands: each sample, and when half of it is read
    assert [share for share, _ in seen] == [share / 8 for share in shares]
    assert seen[5][1] == "pk, 3,000 tokens, 1 of 2"


@pytest.mark.parametrize(
    ("tasks", "lengths", "message"),
    [
        (["pk"], [], "lengths are none"),
        (["pk", "pk"], [1000], "each once"),
        (["pk"], [1000, 90], "at least"),
        (["n"], [1000], "books or essays"),
        (["pk"], [1000, 2000], "at most 1,500 tokens"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_read(tasks, lengths, message):
    reader = Half()
    reader.longest = 1500
    with pytest.raises(TitansError, match=message):
        run_ruler(reader, tasks, lengths)
    assert reader.asked == []


def test_a_titans_model_gives_what_it_gives_on_the_whole_prompt(make_model):
    model, tokenizer = make_model("lmm").double(), byte_tokenizer()
    result = run_ruler(StreamingLM(model, tokenizer, piece_length=100), ["pk"], [650], samples=1)
    whole = StreamingLM(model, tokenizer, piece_length=10_000)
    task = make_ruler_task("pk", whole.count)
    expected = whole.answer(task.sample(650, 0, 0).text, 128)
    assert [answer.text for answer in result.answers] == [expected]
    assert expected
