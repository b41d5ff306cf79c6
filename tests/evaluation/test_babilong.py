"""BABILong asks each model the same, judges by the official rule, and goes on where it was interrupted."""

import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest

from titans.data.babi import LABELS
from titans.errors import TitansError
from titans.evaluation.babilong import run_babilong
from titans.evaluation.babilong_metric import is_right
from titans.evaluation.babilong_questions import Questions
from titans.evaluation.intervals import wilson

_spec = importlib.util.spec_from_file_location("babi_solver", Path(__file__).parents[1] / "data" / "babi_solver.py")
solver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(solver)

OFFICIAL = Path(__file__).parents[3] / "shared" / "data" / "babi"
PLACE, EAST = "Where is Mary?", "What is the bathroom east of?"


@pytest.mark.parametrize(
    ("task", "question", "target", "answer", "right"),
    [
        ("qa1", PLACE, "kitchen", "kitchen", True),
        ("qa1", PLACE, "kitchen", "\nAnswer: The KITCHEN", True),
        ("qa1", PLACE, "kitchen", "kitchen. Or the garden?", True),
        ("qa1", PLACE, "kitchen", ". kitchen", False),
        ("qa1", PLACE, "kitchen", "kitchen, not garden", False),
        ("qa1", PLACE, "kitchen", "kitchen kitchen", True),
        ("qa1", PLACE, "kitchen", "kitchen\n<example>garden", True),
        ("qa1", PLACE, "kitchen", "kitchen <Context> garden", True),
        ("qa1", PLACE, "kitchen", "<example> kitchen", False),
        ("qa1", PLACE, "kitchen", "kitchenette", True),
        ("qa1", PLACE, "kitchen", "", False),
        ("qa1", PLACE, "kitchen", "school", False),
        ("qa4", EAST, "bedroom", "The bathroom is east of the bedroom", True),
        ("qa4", EAST, "bedroom", "bathroom", False),
        ("qa5", "Who did Fred give the milk to?", "Jeff", "Fred gave the milk to Jeff", True),
        ("qa5", "Who did Fred give the milk to?", "Jeff", "the apple, to Jeff", False),
        ("qa6", "Is Mary in the garden?", "no", "I do not know", True),
        ("qa6", "Is Mary in the garden?", "yes", "yes and no", False),
        ("qa7", "How many objects is Mary carrying?", "none", "None", True),
        ("qa7", "How many objects is Mary carrying?", "one", "none", False),
        ("qa7", "How many objects is Mary carrying?", "one", "one", True),
        ("qa7", "How many objects is Mary carrying?", "none", "none or one", False),
        ("qa8", "What is Mary carrying?", "apple,milk", "milk and apple", True),
        ("qa8", "What is Mary carrying?", "apple,milk", "apple", False),
        ("qa8", "What is Mary carrying?", "apple,milk", "apple, milk, football", False),
        ("qa8", "What is Mary carrying?", "apple", "apple,milk", False),
        ("qa8", "What is Mary carrying?", "nothing", "nothing", True),
        ("qa10", "Is Bill in the park?", "maybe", "maybe yes", False),
        ("qa10", "Is Bill in the park?", "maybe", "Maybe", True),
    ],
)
def test_the_official_rule(task, question, target, answer, right):
    assert is_right(task, question, target, answer) is right


class Solver:
    """Reads facts wherever they stand in the prompt's context; wrong where it is told to be."""

    name, longest, policy, write = "solver", None, None, "always"

    def __init__(self, fail_at=None, wrong=()):
        self.prompts, self.fail_at, self.wrong = [], fail_at, wrong

    def digest(self):
        return "1"

    def count(self, text):
        return len(text.split())

    def answer(self, prompt, max_new_tokens, progress):
        progress(0.5)
        if len(self.prompts) == self.fail_at:
            raise KeyboardInterrupt
        assert max_new_tokens == 20
        self.prompts.append(prompt)
        context, question = re.fullmatch(r"(?s).*<context>\n(.*)\n</context>\nQuestion: (.*)", prompt).groups()
        facts = re.findall(r"(?:Bill|Daniel|Fred|Jeff|John|Julie|Mary|Sandra|The) [a-z][a-zA-Z ]*\.", context)
        if len(self.prompts) in self.wrong:
            return "nowhere"
        return f"\nAnswer: {solver.solve(facts, question)}. Question: the garden"


@pytest.fixture
def books(tmp_path):
    text = " ".join(f"It was day {n} of a year in which nothing at all came to pass." for n in range(500))
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text(text)
    return str(tmp_path / "books")


def test_a_solver_of_the_facts_is_always_right(books):
    questions = Questions(tuple(LABELS), ("0k", "1k", "2k"), background=books, samples=4)
    reader, done = Solver(), []
    result = run_babilong(reader, questions, progress=lambda share, where: done.append((share, where)))
    assert {(s.task, s.length): s.correct for s in result.scores} == {
        (task, length): 4 for task in LABELS for length in questions.lengths
    }
    assert done == [(n / 240, f"{task} at {length}") for n, task, length in _order(questions)]
    around = {"1k": 700, "2k": 1700}
    for score in result.scores:
        if score.length in around:
            assert 50 < score.prompt_tokens - around[score.length] < 300  # what the rest of the prompt was left
    assert all(0.25 <= s.majority <= 1 for s in result.scores)


def _order(questions):
    """Each question is announced, and announced again when half of its text is read."""
    pairs = [(task, length) for task in questions.tasks for length in questions.lengths for _ in range(8)]
    return [(n, *pair) for n, pair in enumerate(pairs)]


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="the official bAbI files are not beside the repository")
def test_official_stories(books):
    questions = Questions(("qa1", "qa2", "qa3", "qa4"), ("0k", "2k"), babi=OFFICIAL, background=books, samples=3)
    assert [score.correct for score in run_babilong(Solver(), questions).scores] == [3] * 8
    assert questions.protocol.startswith("protocol: BABILong (")


def test_scores_count(books, tmp_path):
    questions = Questions(("qa1",), ("0k",), samples=10)
    result = run_babilong(Solver(wrong={2, 5, 6}), questions)
    (score,) = result.scores
    assert (score.asked, score.correct, score.accuracy) == (10, 7, 0.7)
    assert (score.low, score.high) == wilson(7, 10)
    result.save(tmp_path / "new")
    saved = json.loads((tmp_path / "new" / "babilong.json").read_text())
    assert saved["benchmark"] == "BABILong-style"
    assert saved["scores"][0]["accuracy"] == 0.7
    assert "made-up stories, 10 questions, not 100" in saved["protocol"]
    assert "PG-19" not in saved["protocol"]  # there is no other text in 0k
    assert saved["write"] == "always"
    assert (tmp_path / "new" / "babilong.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_run_goes_on(books, tmp_path):
    questions = Questions(("qa1", "qa2"), ("0k", "1k"), background=books, samples=5)
    whole = Solver(wrong={3, 17})
    expected = run_babilong(whole, questions)
    first, second, third = Solver(fail_at=12, wrong={3}), Solver(wrong={5}), Solver()
    with pytest.raises(KeyboardInterrupt):
        run_babilong(first, questions, tmp_path)
    assert run_babilong(second, questions, tmp_path) == expected
    assert first.prompts + second.prompts == whole.prompts
    more = Questions(("qa2", "qa4"), ("1k", "2k"), background=books, samples=6)
    run_babilong(third, more, tmp_path)
    assert len(third.prompts) == 24 - 5
    for other in ({"seed": 1}, {"shots": 0}, {"background": None}):
        with pytest.raises(TitansError, match="other settings"):
            run_babilong(Solver(), Questions(("qa1",), ("0k",), **{"background": books, **other}), tmp_path)
    Path(books, "b.txt").write_text("Another book.")
    with pytest.raises(TitansError, match="other settings"):
        run_babilong(Solver(), questions, tmp_path)


def test_the_form_without_instructions(books):
    seen = []

    class Bare(Solver):
        def answer(self, prompt, max_new_tokens, progress):
            seen.append(prompt)
            return " garden."

    run_babilong(Bare(), Questions(("qa1",), ("1k",), background=books, bare=True, samples=1))
    assert re.fullmatch(r"(?s)[^<]*\n\nQuestion: Where is \w+\?\nAnswer:", seen[0])
    assert 700 < len(seen[0].split()) < 708


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tasks": ("qa1", "qa11")}, 'there is no task "qa11"'),
        ({"tasks": ("qa1", "qa1")}, 'the tasks are "qa1,qa1", expected different ones'),
        ({"lengths": ("0k", "2")}, '"2" is no length'),
        ({"lengths": ("4k",)}, "need background text"),
        ({"shots": 4}, "4 examples are asked for, and BABILong has 2 of qa1"),
        ({"shots": 1, "bare": True}, "--bare leaves the examples out"),
        ({"samples": 0}, "0 samples are asked for, expected at least 1"),
        ({"babi": Path("nowhere")}, 'there is no folder "nowhere"'),
    ],
)
def test_questions_that_cannot_be_asked(fields, sentence):
    with pytest.raises(TitansError, match=re.escape(sentence)):
        Questions(**{"tasks": ("qa1",), "lengths": ("0k",), **fields})


def test_a_model_with_too_few_positions(books):
    reader = Solver()
    run_babilong(reader, Questions(("qa1",), ("1k",), background=books, shots=1, samples=3))
    longest = max(len(prompt.split()) for prompt in reader.prompts) + 20
    for length, shots in (("2k", 0), ("1k", 2)):  # 2k leaves no place to the prompt either way
        reader = Solver()
        reader.longest = 1704 if length == "2k" else longest
        with pytest.raises(TitansError, match=rf"reads at most {reader.longest:,} tokens .* leave out {length}"):
            run_babilong(reader, Questions(("qa1",), ("0k", length), background=books, shots=shots, samples=3))
        assert reader.prompts == []
    reader = Solver()
    reader.longest = longest + 8  # the context is long by a word or two
    run_babilong(reader, Questions(("qa1",), ("0k", "1k"), background=books, shots=1, samples=3))
    assert len(reader.prompts) == 6


@pytest.mark.parametrize("babi", [None, OFFICIAL])
def test_every_length_has_stories_of_its_own(babi):
    if babi is not None and not babi.is_dir():
        pytest.skip("the official bAbI files are not beside the repository")
    questions = Questions(("qa1",), ("0k", "64k"), babi=babi, background="any", samples=20)
    short, long, again = ([*itertools.islice(questions.stories("qa1", name), 20)] for name in ("0k", "64k", "0k"))
    assert short == again
    assert len(set(short) & set(long)) < 5
