"""Samples of the needle tasks held to the facts of RULER's generator."""

import itertools
import re
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titans.data import byte_tokenizer
from titans.data.books import Words, sentence_starts
from titans.data.ruler import RULER_TASKS, make_ruler_task, needs_books
from titans.data.ruler.haystacks import DEPTHS, NOISE, Books, Lines
from titans.data.ruler.needles import NEEDLES
from titans.data.tokenizers import encode_batch
from titans.errors import TitansError

pytest.importorskip("wonderwords", reason="wonderwords is not installed")

SHARED = Path(__file__).parents[3] / "shared" / "data"
SENTENCES = "The first one is short. “No!” Then came a longer sentence, with a number like 17 in it. And Mr. Fox left. "
STORY = tuple((SENTENCES * 40 + "The end.").split())
WORDS = Words(STORY, tuple(sentence_starts(STORY)), gutenberg=False)
KEY = r"(?P<key>[\w' -]+-[\w' -]+)"
VALUES = {"number": r"[1-9]\d{6}", "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"}


def count_bytes(text):
    return len(text.encode())


def count_with(tokenizer):
    return lambda text: len(encode_batch(tokenizer, [text])[0])


def gpt2():
    from transformers import GPT2TokenizerFast

    folder = SHARED / "tokenizers" / "gpt2"
    if not folder.is_dir():
        pytest.skip("the GPT-2 tokenizer is not in shared/data")
    return GPT2TokenizerFast.from_pretrained(folder)


def mistral():
    folder = SHARED / "tokenizers" / "mistral-32k"
    if not folder.is_dir():
        pytest.skip("the Mistral tokenizer is not in shared/data")
    pytest.importorskip("sentencepiece", reason="sentencepiece, which reads the Mistral tokenizer, is not installed")
    from transformers import LlamaTokenizerFast

    return LlamaTokenizerFast.from_pretrained(folder)


TOKENIZERS = {"bytes": byte_tokenizer, "gpt2": gpt2, "mistral": mistral}


def make(task, count=count_bytes, words=WORDS):
    return make_ruler_task(task, count, words if needs_books(task) else None)


def parse(sample, kind):
    """The parts of a sample, by a pattern that spells RULER's templates out."""
    pattern = (
        rf"A special magic {kind} is hidden within the following text\. Make sure to memorize it\. "
        rf"I will quiz you about the {kind} afterwards\.\n(?P<context>.*)\n"
        rf"What is the special magic {kind} for {KEY} mentioned in the provided text\?"
        rf" The special magic {kind} for (?P=key) mentioned in the provided text is"
    )
    found = re.fullmatch(pattern, sample.text, re.DOTALL)
    assert found, sample.text
    (value,) = sample.references
    assert re.fullmatch(VALUES[kind], value)
    needle = f"One of the special magic {kind}s for {found['key']} is: {value}."
    assert found["context"].count(needle) == 1
    return found["context"], needle, found["key"]


SINGLE = ("pk", "n", "w")


def test_depths_and_words():
    assert len(DEPTHS) == 40
    assert DEPTHS[:5] == (0, 3, 5, 8, 10)
    assert DEPTHS[-3:] == (95, 97, 100)
    assert make("pk").name == "pk"


@pytest.mark.parametrize("index", range(5))
def test_noise_is_lines_with_the_needle_before_one_of_them(index):
    sample = make("pk").sample(3000, 0, index)
    context, needle, _ = parse(sample, "number")
    lines = context.split("\n")
    position = lines.index(needle)
    assert lines[:position] + lines[position + 1 :] == [
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    ] * (len(lines) - 1)
    assert position < len(lines) - 1
    assert sample.depth == 100 * position / (len(lines) - 1)


@pytest.mark.parametrize("task", ["n", "w"])
@pytest.mark.parametrize("length", [1000, 9000])
def test_books_are_words_from_the_first_on_with_the_needle_between_sentences(task, length):
    made = make(task)
    for index in range(30):
        sample = made.sample(length, 1, index)
        context, needle, _ = parse(sample, NEEDLES[task].value)
        before, after = context.split(needle)
        words = before.split() + after.split()
        assert words == (list(STORY) * 3)[: len(words)]
        assert context == f"{' '.join(before.split())} {needle} {' '.join(after.split())}"
        starts = [number for number in range(len(words)) if number % len(STORY) in WORDS.starts]
        assert sample.depth in DEPTHS
        sentence = len(starts) * int(sample.depth) // 100
        assert len(before.split()) == [*starts, len(words)][sentence]
        if sample.depth in (0, 100):
            assert context.startswith(" One of") or context.endswith(". ")


def test_all_depths_and_lines_are_drawn_evenly():
    books, lines = Books(count_bytes, WORDS), Lines(count_bytes, itertools.repeat(NOISE), NOISE)
    draws = [(number + 0.5) / 4000 for number in range(4000)]
    depths = [books.places(500, [draw])[0][1] for draw in draws]
    assert {depth: depths.count(depth) for depth in depths} == dict.fromkeys(DEPTHS, 100)
    positions = [lines.places(50, [draw])[0][0] for draw in draws]
    assert {at: positions.count(at) for at in positions} == dict.fromkeys(range(50), 80)


@pytest.mark.parametrize("task", SINGLE)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_length_is_met_by_less_than_a_line_or_a_word(task, tokenizer):
    count = count_with(TOKENIZERS[tokenizer]())
    made = make(task, count)
    longest = count("\n" + NOISE) if task == "pk" else max(count(f" {word}") + 1 for word in STORY)
    for index, length in enumerate((600, 1023, 2048, 16_384)):
        sample = made.sample(length, 0, index)
        assert sample.tokens == count(sample.text)
        assert length - longest < sample.tokens + 128 <= length


@settings(max_examples=40, deadline=None)
@given(task=st.sampled_from(SINGLE), length=st.integers(600, 30_000), index=st.integers(0, 1000))
def test_any_length_is_met(task, length, index):
    sample = ANY[task].sample(length, 3, index)
    slack = length - 128 - count_bytes(sample.text)
    assert 0 <= slack < (len(NOISE) + 1 if task == "pk" else 20)


ANY = {task: make(task) for task in SINGLE}


@pytest.mark.parametrize("task", RULER_TASKS)
def test_the_smallest_length_works_and_less_is_refused(task):
    made, shortest = make(task), 200
    while least := least_of(made, shortest):
        assert least > shortest
        shortest = least
    for index in range(20):
        sample = made.sample(shortest, 0, index)
        assert sample.tokens == count_bytes(sample.text) <= shortest - made.new_tokens
    assert least_of(made, shortest - 1)


def least_of(made, length):
    """The tokens that a refusal tells of; None where the length is not refused."""
    try:
        made.check(length)
    except TitansError as error:
        return int(re.search(r"has at least ([\d,]+) tokens with its answer", str(error))[1].replace(",", ""))
    return None


def test_a_tokenizer_that_is_not_additive_ends_and_fits():
    def count(text):  # jumps where the length of the text says so
        return len(text) + (len(text) * 7919) % 13

    for task in ("pk", "w"):
        sample = make(task, count).sample(2000, 0, 0)
        assert 2000 - 300 < count(sample.text) + 128 <= 2000


def test_seeds_and_indices_make_samples():
    made = make("w")
    assert made.sample(2000, 0, 1) == make("w").sample(2000, 0, 1)
    samples = [made.sample(2000, seed, index) for seed in (0, 1) for index in (0, 1)]
    assert len({sample.references for sample in samples}) == 4
    assert uuid.UUID(samples[0].references[0]).version == 4


def test_what_cannot_be_made_is_refused():
    with pytest.raises(TitansError, match='no RULER task "x": expected pk, n, w, niah_multikey_1'):
        make("x")
    with pytest.raises(TitansError, match="books or essays"):
        make_ruler_task("n", count_bytes)


@pytest.mark.slow
def test_a_million_tokens_take_few_counts():
    tokenizer, calls = gpt2(), []

    def count(text):
        calls.append(len(text))
        return len(encode_batch(tokenizer, [text])[0])

    sample = make("n", count).sample(1_000_000, 0, 0)
    assert 1_000_000 - 10 < sample.tokens + 128 <= 1_000_000
    assert len([size for size in calls if size > 1_000_000]) <= 4
