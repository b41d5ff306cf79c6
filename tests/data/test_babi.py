"""Stories are read as the official files have them, and made up so that a reader of their words finds the answer."""

import collections
import importlib.util
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titans.data.babi import LABELS, Story, find_stories, read_stories
from titans.data.babi_tasks import simulate, simulate_questions
from titans.errors import TitansError

OFFICIAL = Path(__file__).parents[3] / "shared" / "data" / "babi"
_spec = importlib.util.spec_from_file_location("babi_solver", Path(__file__).with_name("babi_solver.py"))
solver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(solver)

FILE = """1 Mary got the milk there.
2 John moved to the bedroom.
3 Where is John? \tbedroom\t2
4 Mary travelled to the hallway.
5 Where is the milk? \thallway\t1 4
1 The hallway is east of the bathroom.
2 What is the hallway east of?\tbathroom\t1
"""


def test_one_story_per_question_without_earlier_questions(tmp_path):
    path = tmp_path / "qa2_two_test.txt"
    path.write_text(FILE)
    facts = ("Mary got the milk there.", "John moved to the bedroom.", "Mary travelled to the hallway.")
    assert read_stories(find_stories(tmp_path, "qa2")) == [
        Story(facts[:2], "Where is John?", "bedroom", (1,)),
        Story(facts, "Where is the milk?", "hallway", (0, 2)),
        Story(("The hallway is east of the bathroom.",), "What is the hallway east of?", "bathroom", (0,)),
    ]


@pytest.mark.parametrize("line", ["Mary went.", "3", "3 Where?\tx", "3 Where?\tx\t7", "3 Where?\tx\tone"])
def test_damaged_files_are_named_by_line(tmp_path, line):
    path = tmp_path / "qa1_test.txt"
    path.write_text("1 Mary got the milk.\n\n" + line + "\n")
    with pytest.raises(TitansError, match=r"qa1_test.txt, line 3 is no line of a bAbI file"):
        read_stories(path)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(TitansError, match=r"holds 0 files qa1_\*_test.txt"):
        find_stories(tmp_path, "qa1")
    (tmp_path / "qa1_x_test.txt").write_text("1 Mary got the milk.\n")
    with pytest.raises(TitansError, match="holds no questions"):
        read_stories(find_stories(tmp_path, "qa1"))


@pytest.mark.skipif(not OFFICIAL.is_dir(), reason="the official bAbI files are not beside the repository")
@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("task", ["qa1", "qa2", "qa3", "qa4"])
def test_the_solver_knows_all_official_answers(task, part):
    stories = read_stories(find_stories(OFFICIAL, task, part))
    assert len(stories) == 1000
    assert [s for s in stories if solver.solve(s.facts, s.question) != s.answer] == []
    assert {len(s.support) for s in stories} == {{"qa2": 2, "qa3": 3}.get(task, 1)}
    assert {s.answer for s in stories} == set(LABELS[task])


@pytest.mark.parametrize("task", LABELS)
@given(seed=st.integers(0, 2**32))
def test_made_up_stories_tell_their_answers(task, seed):
    for number in range(20):
        stories = simulate_questions(task, random.Random(f"{seed}/{number}"), 4)
        assert stories[0] == simulate(task, random.Random(f"{seed}/{number}"))
        assert len({story.facts for story in stories}) == 1
        assert len({story.question for story in stories}) == len(stories)
        check(task, stories)


def check(task, stories):
    for story in stories:
        assert solver.solve(story.facts, story.question) == story.answer
        assert all(answer in LABELS[task] for answer in story.answer.split(","))
        assert all(0 <= fact < len(story.facts) for fact in story.support)


@pytest.mark.parametrize("task", ["qa1", "qa2", "qa3", "qa4", "qa5", "qa6", "qa9", "qa10"])
def test_the_supporting_facts_matter(task):
    """Without any one of them, the answer cannot be read from the rest, or is another."""
    needed = total = 0
    for seed in range(40):
        story = simulate(task, random.Random(seed))
        for left_out in story.support:
            rest = [fact for index, fact in enumerate(story.facts) if index != left_out]
            try:
                found = solver.solve(rest, story.question)
            except (AssertionError, KeyError, IndexError, ValueError):
                found = None
            total += 1
            needed += found != story.answer
    # an answer can come out the same by chance, above all yes and no, and an object that is only put down stays
    assert needed > 0.5 * total
    assert total == 40 * {"qa2": 2, "qa3": 3}.get(task, 1)


@pytest.mark.parametrize("task", LABELS)
def test_every_answer_occurs_and_none_is_the_rule(task):
    answers = collections.Counter(simulate(task, random.Random(seed)).answer for seed in range(400))
    assert {part for answer in answers for part in answer.split(",")} == set(LABELS[task])
    assert max(answers.values()) < 0.7 * 400


def test_the_words_are_those_of_the_official_files():
    if not OFFICIAL.is_dir():
        pytest.skip("the official bAbI files are not beside the repository")
    official, ours = set(), set()
    for task in ("qa1", "qa2", "qa3", "qa4"):
        official |= {_shape(line) for story in read_stories(find_stories(OFFICIAL, task)) for line in _lines(story)}
        ours |= {_shape(line) for seed in range(400) for line in _lines(simulate(task, random.Random(seed)))}
    assert ours == official


def _lines(story):
    return (*story.facts, story.question)


def _shape(line):
    for kind, words in {
        "P": "Daniel John Mary Sandra",
        "R": " ".join(LABELS["qa1"]),
        "O": "apple football milk",
    }.items():
        for word in words.split():
            line = line.replace(word, kind)
    return line


def test_the_seed_decides():
    assert simulate("qa3", random.Random(5)) == simulate("qa3", random.Random(5))
    assert simulate("qa3", random.Random(5)) != simulate("qa3", random.Random(6))
    with pytest.raises(TitansError, match='there is no task "qa11": expected one of qa1, qa2'):
        simulate("qa11", random.Random(0))
