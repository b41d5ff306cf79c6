"""Several needles, variable tracking and word counts held to the facts of RULER's generators."""

import collections
import importlib.util
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titans.data.books import Words, sentence_starts
from titans.data.ruler import RULER_TASKS, canonical, make_ruler_task, needs_books
from titans.data.ruler.haystacks import DEPTHS, NOISE
from titans.data.ruler.needles import NEEDLES
from titans.errors import TitansError

pytest.importorskip("wonderwords", reason="wonderwords is not installed")

STORY = tuple(("The first one is short. Then came a longer sentence, with a number like 17 in it. " * 60).split())
WORDS = Words(STORY, tuple(sentence_starts(STORY)), gutenberg=False)
NUMBER = r"[1-9]\d{6}"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
KEY = r"[\w' -]+?-[\w' -]+?"


def octets(text):
    return len(text.encode())


def make(task, count=octets):
    return make_ruler_task(task, count, WORDS if needs_books(task) else None)


MADE = {task: make(task) for task in RULER_TASKS}


def told(text, kind):
    """The value of every key that the text tells, in order."""
    values = collections.defaultdict(list)
    for key, value in re.findall(rf"One of the special magic {kind}s for (.+?) is: ([\w-]+)\.", text):
        values[key].append(value)
    return values


@pytest.mark.parametrize(
    ("task", "needles", "asked"),
    [("niah_multikey_1", 4, 1), ("niah_multivalue", 4, 4), ("niah_multiquery", 4, 4)],
)
@pytest.mark.parametrize("index", range(4))
def test_several_needles_in_books(task, needles, asked, index):
    sample = MADE[task].sample(3000, 0, index)
    values = told(sample.text, "number")
    assert sum(map(len, values.values())) == needles
    if asked == 1:
        match = re.fullmatch(
            r"(?s)A special magic number is hidden within the following text\. Make sure to memorize it\. I will quiz "
            rf"you about the number afterwards\.\n(.*)\nWhat is the special magic number for ({KEY}) mentioned in the "
            r"provided text\? The special magic number for \2 mentioned in the provided text is",
            sample.text,
        )
    else:
        match = re.fullmatch(
            r"(?s)Some special magic numbers are hidden within the following text\. Make sure to memorize it\. I will "
            r"quiz you about the numbers afterwards\.\n(.*)\nWhat are all the special magic numbers for (.*) mentioned "
            r"in the provided text\? The special magic numbers for \2 mentioned in the provided text are",
            sample.text,
        )
    context, query = match.groups()
    keys = re.split(r", and |, ", query)
    assert set(keys) <= set(values)
    assert sorted(itertools.chain(*(values[key] for key in keys))) == sorted(sample.references)
    assert len(sample.references) == asked
    assert all(re.fullmatch(NUMBER, value) for value in sample.references)
    rest = re.sub(r"One of the special magic .*? is: \d+\.", "", context).split()
    assert rest == list(itertools.islice(itertools.cycle(STORY), len(rest)))
    assert (sample.depth in DEPTHS) == (asked == 1)


@pytest.mark.parametrize(("task", "key", "value"), [("niah_multikey_2", KEY, NUMBER), ("niah_multikey_3", UUID, UUID)])
@pytest.mark.parametrize("index", range(3))
def test_a_needle_among_others_of_its_kind(task, key, value, index):
    sample = MADE[task].sample(4000, 1, index)
    kind = NEEDLES[task].value
    context = sample.text.split("afterwards.\n")[1].split("\nWhat is the special magic")[0]
    lines = context.split("\n")
    pairs = [re.fullmatch(rf"One of the special magic {kind}s for ({key}) is: ({value})\.", line) for line in lines]
    assert all(pairs)
    asked = re.search(rf"What is the special magic {kind} for (.*?) mentioned", sample.text)[1]
    (at,) = [number for number, pair in enumerate(pairs) if pair[1] == asked]
    assert sample.references == (pairs[at][2],)
    assert sample.depth == 100 * at / (len(lines) - 1)
    assert len({pair[2] for pair in pairs}) == len(pairs) > 15


def test_no_two_needles_stand_at_one_line():
    noise = MADE["pk"].haystack
    for units in (5, 6, 50):
        for seed in range(50):
            draws = [(seed * 0.019 + number * 0.21) % 1 for number in range(5)]
            positions = [position for position, _ in noise.places(units, draws)]
            assert len(set(positions)) == 5
            assert set(positions) <= set(range(units))


@pytest.mark.parametrize("index", range(4))
def test_a_chain_of_variables(index):
    sample = MADE["vt"].sample(3000, 0, index)
    shape = (
        r"Memorize and track the chain\(s\) of variable assignment hidden in the following text\.\n\n(.*?)\n"
        r"Question: Find all variables that are assigned the value (\d{5}) in the text above\. Answer: According to "
        r"the chain\(s\) of variable assignment in the text above, 5 variables are assgined the value \2, they are: "
    )
    match = re.fullmatch(rf"(?s){shape} ((?:[A-Z]{{3}} ?){{5}})\n\n{shape.replace('2', '5')}", sample.text)
    example, shown_value, shown, context, value = match.groups()
    assert chain(example) == (shown.split(), shown_value)
    assert chain(context) == (list(sample.references), value)
    assert all(re.fullmatch("[A-Z]{5}", name) for name in sample.references)
    assert set(re.sub("VAR .*", "", context).split("\n")) == {NOISE, ""}
    assert sample.depth is None


def chain(context):
    """The variables in the order in which they were assigned, and the value of the first."""
    (first, value), *later = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", context)
    names = [first]
    for name, earlier in later:
        assert earlier == names[-1]
        names.append(name)
    return names, value


@pytest.mark.parametrize(("length", "often", "seldom", "shown"), [(3500, 6, 1, 20), (14_000, 30, 3, 40)])
def test_common_words(length, often, seldom, shown):
    sample = MADE["cwe"].sample(length, 0, 0)
    lists = re.findall(r"appear most often\.\n(.*?)\nQuestion: What are the 10 most common words", sample.text)
    counts = [collections.Counter(re.findall(r"\d+\. (\D+?)(?= \d+\.|$)", text)) for text in lists]
    assert [len(re.findall(r"\d+\. ", text)) for text in lists] == [sum(c.values()) for c in counts]
    top = counts[1].most_common(10)
    assert set(sample.references) == {word for word, _ in top}
    assert {number for _, number in top} == {often}
    assert set(counts[1].values()) == {often, seldom}
    assert len(counts[0]) == shown
    answer = re.search(r"in the list are: (.*)\nBelow is a numbered list", sample.text)[1]
    assert {word for word, _ in counts[0].most_common(10)} == set(re.findall(r"\d+\. (\D+?)(?= \d+\.|$)", answer))
    assert sample.text.endswith("Answer: The top 10 words that appear most often in the list are:")


@pytest.mark.parametrize(("length", "code"), [(1500, 30), (6000, 120)])
def test_frequent_words(length, code):
    sample = MADE["fwe"].sample(length, 0, 3)
    text = re.search(r"Find the three most frequently appeared coded words\. (.*)\nQuestion: Do not", sample.text)[1]
    counts = collections.Counter(text.split())
    ranked = counts.most_common()
    assert ranked[0][0] == "..."
    assert [word for word, _ in ranked[1:4]] == list(sample.references)
    assert ranked[3][1] > ranked[4][1]  # an answer that there is only one of
    assert all(re.fullmatch("[a-z]{6}", word) for word, _ in ranked[1:])
    assert len(counts) <= code
    first = ranked[0][1]
    assert all(abs(number - first / rank**2) <= 1 for rank, (_, number) in enumerate(ranked, start=1))


SLACK = {"cwe": 400, "fwe": 100, "niah_multikey_2": 120, "niah_multikey_3": 150, "vt": 100}  # bytes of a unit


@settings(max_examples=40, deadline=None)
@given(
    task=st.sampled_from([task for task in RULER_TASKS if task not in ("pk", "n", "w")]),
    length=st.integers(8000, 12_000),
    index=st.integers(0, 99),
)
def test_any_length_is_met(task, length, index):
    made = MADE[task]
    sample = made.sample(length, 3, index)
    assert sample == made.sample(length, 3, index)
    slack = length - made.new_tokens - octets(sample.text)
    assert sample.tokens == octets(sample.text)
    assert 0 <= slack < SLACK.get(task, 25)


def test_a_list_of_words_has_an_end():
    with pytest.raises(TitansError, match=r"of the task cwe has at most [\d,]+ tokens with its answer, fewer than"):
        make("cwe").sample(10_000_000, 0, 0)


def test_names():
    assert [canonical(f"niah_single_{n}") for n in (1, 2, 3)] == ["pk", "n", "w"]
    with pytest.raises(TitansError, match='no RULER task "niah_single_4"'):
        canonical("niah_single_4")


def test_the_harness_has_the_same_tasks():
    """Its RULER is held to by name: every one of its tasks but those that need documents is here."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None:
        pytest.skip("lm-eval is not installed")
    folder = Path(spec.submodule_search_locations[0], "tasks", "ruler")
    names = {path.stem for path in folder.glob("*.yaml")} - {"ruler", "qa_hotpot", "qa_squad"}
    assert {canonical(name) for name in names} == set(RULER_TASKS)
