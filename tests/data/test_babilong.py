"""Samples are as the official generator makes them: the facts in order, where they may stand, and how long it is."""

import collections
import importlib.util
import itertools
import random
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from titans.data.babi import LABELS, Story
from titans.data.babi_tasks import simulate, simulate_questions
from titans.data.babilong import (
    Background,
    Length,
    fitting_stories,
    make_sample,
    official_stories,
    simulated_stories,
)
from titans.data.babilong_episodes import BabilongEpisodes
from titans.data.babilong_prompts import GUIDES, bare_prompt, prompt
from titans.data.books import sentences
from titans.data.corpora import Document
from titans.data.packing import IGNORED
from titans.data.tokenizers import byte_tokenizer
from titans.errors import TitansError
from titans.evaluation.babilong_metric import is_right

GPT2 = Path(__file__).parents[3] / "shared" / "data" / "tokenizers" / "gpt2"
_spec = importlib.util.spec_from_file_location("babi_solver", Path(__file__).with_name("babi_solver.py"))
solver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(solver)


def words(text):
    """A tokenizer of words, each with the space before it."""
    return len(text.split())


def numbered(book, sentences=400):
    """A book whose sentences are all different, every third of them too short."""
    return " ".join(
        f"No {book} {n}." if n % 3 == 0 else f"Book {book} sentence {n} " + "goes on and on " * (2 + n % 4) + "here."
        for n in range(sentences)
    )


BOOKS = [Document(str(n), partial(lambda n: iter((numbered(n),)), n)) for n in range(3)]


def background(count=words, books=BOOKS):
    return Background(books, count)


def octets(text):
    return len(text.encode())


@pytest.mark.parametrize(("name", "tokens"), [("0k", 0), ("1k", 700), ("2k", 1700), ("128k", 127_700), ("1M", 999_700)])
def test_lengths_leave_three_hundred_tokens_to_the_prompt(name, tokens):
    assert Length.parse(name) == Length(name, tokens)


@pytest.mark.parametrize("name", ["", "k", "1", "1K", "-1k", "1.5k", "1 M"])
def test_what_is_no_length(name):
    with pytest.raises(TitansError, match="is no length: expected one such as 0k, 4k or 1M"):
        Length.parse(name)


@given(seed=st.integers(0, 2**32), tokens=st.integers(100, 2000))
def test_the_size_is_reached_and_not_passed(seed, tokens):
    story = simulate("qa1", random.Random(seed))
    sample = make_sample(story, tokens, background(), words, random.Random(seed))
    assert words(sample.context) == tokens
    sample = make_sample(story, tokens + 300, background(octets), octets, random.Random(seed))
    assert tokens + 298 <= octets(sample.context) <= tokens + 300  # a cut may leave a space, which is not kept


@pytest.mark.skipif(not GPT2.is_dir(), reason="GPT-2's tokenizer is not beside the repository")
def test_the_size_in_the_official_tokens():
    from tokenizers import ByteLevelBPETokenizer

    core = ByteLevelBPETokenizer(str(GPT2 / "vocab.json"), str(GPT2 / "merges.txt"))

    def count(text):
        return len(core.encode(text).ids)

    books = background(count)
    for seed in range(10):
        sample = make_sample(simulate("qa2", random.Random(seed)), 1700, books, count, random.Random(seed))
        assert abs(count(sample.context) - 1700) <= 1  # what stands first has no space before it


@given(seed=st.integers(0, 2**32))
def test_facts_stand_in_order_between_whole_sentences(seed):
    story = simulate("qa2", random.Random(seed))
    sample = make_sample(story, 500, background(), words, random.Random(seed))
    rest, between = sample.context, []
    for fact in story.facts:
        before, rest = rest.split(fact, 1)
        between.append(before.strip())
    between.append(rest.strip())
    sentences = [[s for s in part.split(". ") if s] for part in between]
    counts = [len(part) for part in sentences]
    assert tuple(sum(counts[: i + 1]) for i in range(len(story.facts))) == sample.positions
    told = [s.removesuffix(".") for part in sentences for s in part]
    whole = {s for book in range(3) for s in numbered(book).removesuffix(".").split(". ")}
    assert all(s in whole for s in told[:-1])  # only the last is cut
    assert any(s.startswith(told[-1]) for s in whole)
    assert all(words(s) >= 10 for s in told[:-1])
    numbers = [int(s.split()[3]) for s in told[:-1]]
    follow = [b == a + 1 + (a % 3 == 2) for a, b in itertools.pairwise(numbers)]
    assert follow.count(False) <= 1  # the next book begins where one ends


def test_positions_are_uniform_and_may_be_the_same():
    ten_words = Document("x", lambda: iter(("Each of these many sentences has just ten words, you see. " * 100,)))
    story = Story(("A.", "B."), "?", "", ())
    places, together = collections.Counter(), 0
    for seed in range(600):
        positions = make_sample(story, 82, background(books=[ten_words]), words, random.Random(seed)).positions
        places.update(positions)
        together += positions[0] == positions[1]
    assert set(places) == set(range(9))  # the boundaries of eight sentences
    assert all(abs(number / 1200 - 1 / 9) < 0.03 for number in places.values())
    assert abs(together / 600 - 1 / 9) < 0.04


def test_books_and_offsets_are_random():
    starts = collections.Counter()
    for seed in range(300):
        first = background().sample(50, random.Random(seed))[0].split()
        starts[first[1]] += 1
        starts["front" if int(first[3]) < 200 else "back"] += 1
    assert min(starts[book] for book in "012") > 70
    assert min(starts["front"], starts["back"]) > 110


def test_a_text_of_no_use_is_refused():
    books = [Document("x", lambda: iter(("Too short. All of it.",)))]
    with pytest.raises(TitansError, match="no sentences of at least 10 tokens"):
        background(books=books).sample(10, random.Random(0))
    with pytest.raises(TitansError, match="need background text: give the path of books as --background"):
        make_sample(simulate("qa1", random.Random(0)), 700, None, words, random.Random(0))


def test_without_background_the_facts_are_all():
    story = simulate("qa3", random.Random(3))
    assert make_sample(story, 0, None, words, random.Random(0)).context == " ".join(story.facts)


def test_a_story_has_one_fact_for_eight_tokens_at_most():
    def story(facts):
        return Story(("Go.",) * facts, "?", "", ())

    length = Length("1k", 700)
    assert length.fits(story(86), words)
    assert not length.fits(story(87), words)  # the question is counted with them, as the official generator does
    assert Length("0k", 0).fits(story(1000), words)
    assert not length.fits(story(80), lambda text: 9 * text.count("."))  # in small tokens they are too long themselves


def test_sentences_keep_their_line_breaks():
    text = "  It was the best\nof times.\n\nIt was the age!  Of\twisdom.\n"
    assert sentences(text) == ["It was the best\nof times.", "It was the age!", "Of\twisdom."]
    assert sentences(" \n") == []
    book = Document("x", lambda: iter(("Each of these many sentences\nhas just ten\nwords, you see. " * 9,)))
    context = make_sample(Story(("A.",), "?", "", ()), 34, background(books=[book]), words, random.Random(0)).context
    assert context.replace("A.", "").count("\n") == 6  # three sentences with two line breaks each


def test_too_few_stories(tmp_path):
    (tmp_path / "qa1_x_test.txt").write_text("1 A went to the office.\n2 Where is A?\toffice\t1\n")
    for name in ("0k", "1k"):
        with pytest.raises(TitansError, match="qa1 has 1 of the 2 stories that are asked for: ask for fewer samples"):
            fitting_stories(official_stories(tmp_path, "qa1", "0"), Length.parse(name), words, 2, "qa1")
    with pytest.raises(TitansError, match="only 0 of the stories of qa3 tried fit"):
        fitting_stories(simulated_stories("qa3", "0"), Length.parse("1k"), lambda text: 1000, 1, "qa3")


# How many examples BABILong gives, and the sentences in which its first three tasks are answered.
OFFICIAL_EXAMPLES = dict.fromkeys(LABELS, 2) | dict.fromkeys(("qa5", "qa7", "qa8", "qa10"), 3)
OFFICIAL_ANSWERS = {
    "qa1": r"The most recent location of \w+ is \w+\.",
    "qa2": r"The \w+ is in the \w+\.",
    "qa3": r"Before the \w+ the \w+ was in the \w+\.",
}


class TestPrompt:
    def test_the_official_layout(self):
        guide = GUIDES["qa1"]
        (facts, asked, answer), second = guide.examples
        one = f"<example>\n{facts} {asked}\nAnswer: {answer}\n</example>"
        two = f"<example>\n{second[0]} {second[1]}\nAnswer: {second[2]}\n</example>"
        rest = f"{guide.rule}\n<context>\nIt rains.\n</context>\nQuestion: Where is Mary?"
        asking = ("qa1", "It rains.", "Where is Mary?")
        assert prompt(*asking) == f"{guide.instruction}\n{one}\n{two}\n{rest}"
        assert prompt(*asking, shots=1) == f"{guide.instruction}\n{one}\n{rest}"
        assert prompt(*asking, shots=0) == f"{guide.instruction}\n\n{rest}"
        assert bare_prompt("It rains.", "Where is Mary?") == "It rains.\n\nQuestion: Where is Mary?\nAnswer:"
        with pytest.raises(TitansError, match="3 examples are asked for, and BABILong has 2 of qa1: expected 0 to 2"):
            prompt(*asking, shots=3)

    @pytest.mark.parametrize("task", LABELS)
    def test_examples_are_right(self, task):
        assert len(GUIDES[task].examples) == OFFICIAL_EXAMPLES[task]
        for facts, question, answer in GUIDES[task].examples:
            right = solver.solve([f"{fact}." for fact in facts.removesuffix(".").split(". ")], question)
            assert is_right(task, question, right, answer)
            assert re.fullmatch(OFFICIAL_ANSWERS.get(task, re.escape(right)), answer)


class TestEpisodes:
    def episodes(self, *tasks):
        return BabilongEpisodes(byte_tokenizer(), [partial(simulate, task) for task in tasks], BOOKS)

    def test_answers_alone_have_labels(self):
        ids, labels = self.episodes("qa1", "qa4").batch(6, 700, torch.Generator().manual_seed(0))
        assert ids.shape == labels.shape == (6, 700)
        for row, wanted in zip(ids, labels, strict=True):
            asked = wanted != IGNORED
            assert torch.equal(row[asked], wanted[asked])
            assert row[0] == 256
            first = int(asked.nonzero()[0])
            text = bytes(row[1:first].tolist()).decode()
            answer = bytes(row[asked].tolist()).decode()
            assert text.endswith("?\nAnswer:")
            assert answer.removeprefix(" ").removesuffix(".") in LABELS["qa1"]
            context, question = text.removesuffix("\nAnswer:").split("\n\nQuestion: ")
            assert 690 < len(text) + len(answer) <= 699
            facts = [
                f"{s}." for s in context.split(". ") if s.split()[0] in {"Daniel", "John", "Mary", "Sandra", "The"}
            ]
            facts = [fact.replace("..", ".") for fact in facts]
            assert solver.solve(facts, question) == answer.strip(" .")
            assert "sentence" in context

    def test_the_generator_decides(self):
        first, again, other = (
            self.episodes("qa2").batch(2, 1200, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    @pytest.mark.parametrize("most_filler", [None, 0, 200])
    def test_a_length_that_holds_no_story(self, most_filler):
        with pytest.raises(TitansError, match="hardly any story fits 60 tokens"):
            self.episodes("qa1").batch(1, 60, torch.Generator().manual_seed(0), most_filler)

    @pytest.mark.parametrize("most_filler", [None, 0, 300])
    def test_several_questions_of_each_story(self, most_filler):
        draws = [partial(simulate_questions, task, most=5) for task in ("qa1", "qa4")]
        episodes = BabilongEpisodes(byte_tokenizer(), draws, BOOKS)
        ids, labels = episodes.batch(4, 1500, torch.Generator().manual_seed(3), most_filler)
        assert ids.shape == labels.shape == (4, 1500)
        stories = asked = 0
        for row, wanted in zip(ids.tolist(), labels.tolist(), strict=True):
            assert row[0] == 256
            text = bytes(row[1:]).decode()
            parts = re.split(r"\n\nQuestion: (.*)\nAnswer: (\w+)\.", text)  # context, question, answer, context, ...
            facts, spoken = [], []
            for context, question, answer in zip(parts[:-1:3], parts[1::3], parts[2::3], strict=True):
                if context:  # a new story; otherwise another question about the last one
                    facts = re.findall(r"(?:Daniel|John|Mary|Sandra|The) [^.]*\.", context)
                    stories += 1
                assert solver.solve(facts, question) == answer
                spoken.append(f" {answer}.")
                asked += 1
            end = len(text) + 1 - len(parts[-1])  # what follows was cut
            assert bytes(t for t in wanted[:end] if t != IGNORED).decode() == "".join(spoken)
            assert all(t in (IGNORED, u) for t, u in zip(wanted, row, strict=True))
            assert ("sentence" in text) == (most_filler != 0)
        assert stories == 4 if most_filler is None else stories > 8
        assert asked > 2 * stories
