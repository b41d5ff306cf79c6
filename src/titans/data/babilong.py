"""BABILong (Kuratov et al., 2024): the facts of a bAbI story, in order, among the sentences of books."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from titans.data.babi import Story, find_stories, read_stories
from titans.data.babi_tasks import simulate
from titans.data.books import sentences, strip_gutenberg
from titans.data.corpora import Document, Source, documents
from titans.errors import TitansError

PROMPT_TOKENS = 300  # of a length, what is left to the prompt around the context
SHORTEST_SENTENCE = 10  # tokens
TOKENS_PER_FACT = 8  # a story may have no more facts, the question counted, than the context has tokens over this
TRIES = 1000  # until something is taken to be impossible


@dataclasses.dataclass(frozen=True)
class Length:
    """How long the text is that a question is asked about.

    Args:
        name: as 0k, 4k or 1M; k is a thousand.
        tokens: of the context; 0 for the facts alone.
    """

    name: str
    tokens: int

    @classmethod
    def parse(cls, name: str) -> Length:
        """Read a length.

        Raises:
            TitansError: it is none, or leaves nothing for the context.
        """
        match = re.fullmatch(r"(\d+)(k|M)", name)
        if not match:
            raise TitansError(f'"{name}" is no length: expected one such as 0k, 4k or 1M')
        tokens = int(match[1]) * {"k": 1000, "M": 1_000_000}[match[2]]
        return cls(name, max(0, tokens - PROMPT_TOKENS))

    def fits(self, story: Story, count: Callable[[str], int]) -> bool:
        """Say whether a story has room among its background.

        Args:
            story: the story.
            count: counts the tokens of a text.
        """
        few = len(story.facts) + 1 <= self.tokens // TOKENS_PER_FACT
        return not self.tokens or (few and count(" ".join(story.facts)) <= self.tokens)


class Background:
    """Sentences of books, read on from a random place.

    Args:
        books: the texts.
        count: counts the tokens of a text, in the tokenizer of the model that will read it.
    """

    def __init__(self, books: Iterable[Document], count: Callable[[str], int]) -> None:
        self._books, self._count = list(books), count
        self._sentences: dict[int, list[str]] = {}
        self._tokens: dict[str, int] = {}

    @classmethod
    def read(cls, source: Source | Sequence[Source], count: Callable[[str], int]) -> Background:
        """Find the books of a source, see `titans.data.corpora.documents`; each is read when it is first needed."""
        return cls(documents(source), count)

    def sample(self, tokens: int, rng: random.Random) -> list[str]:
        """Take sentences of at least ten tokens from a random book and a random place on, the last one cut.

        Where the book ends, another begins.

        Args:
            tokens: of all sentences together, each with the space before it.
            rng: chooses.

        Returns:
            The sentences.

        Raises:
            TitansError: the books hold no such sentences.
        """
        taken: list[str] = []
        fruitless = 0
        while tokens > 0:
            sentences, before = self._of(rng.randrange(len(self._books))), tokens
            for sentence in sentences[rng.randrange(len(sentences)) :]:
                length = self._length(sentence)
                if length < SHORTEST_SENTENCE:
                    continue
                taken.append(sentence if length <= tokens else self._cut(sentence, tokens))
                tokens -= length
                if tokens <= 0:
                    break
            fruitless = 0 if tokens < before else fruitless + 1
            if fruitless == TRIES:
                raise TitansError(
                    f"the background has no sentences of at least {SHORTEST_SENTENCE} tokens: give other text, such as "
                    "a folder of books"
                )
        return [sentence for sentence in taken if sentence]

    def _of(self, book: int) -> list[str]:
        if book not in self._sentences:
            self._sentences[book] = sentences(strip_gutenberg(self._books[book].text()))
        return self._sentences[book]

    def _length(self, sentence: str) -> int:
        if sentence not in self._tokens:  # a long text has many sentences, and many texts have the same
            self._tokens[sentence] = self._count(f" {sentence}")
        return self._tokens[sentence]

    def _cut(self, sentence: str, tokens: int) -> str:
        """The longest beginning that has no more tokens."""
        fits, too_long = 0, len(sentence)
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self._count(f" {sentence[:middle]}") <= tokens:
                fits = middle
            else:
                too_long = middle
        return sentence[:fits].rstrip()


@dataclasses.dataclass(frozen=True)
class BabilongSample:
    """A question about a long text.

    Args:
        story: the question, its answer, and the facts among the text.
        context: the text.
        positions: how many background sentences stand before each fact.
    """

    story: Story
    context: str
    positions: tuple[int, ...]


def make_sample(
    story: Story, tokens: int, background: Background | None, count: Callable[[str], int], rng: random.Random
) -> BabilongSample:
    """Hide the facts of a story among background sentences.

    Args:
        story: the story.
        tokens: of the context. 0: the facts alone.
        background: where the other sentences come from. Needed for more than 0 tokens.
        count: counts the tokens of a text.
        rng: chooses sentences and the boundaries at which the facts stand: each with the same chance, several at one
            or none, in their order.

    Returns:
        The sample.
    """
    sentences = []
    if tokens:
        if background is None:
            raise TitansError("lengths other than 0k need background text: give the path of books as --background")
        sentences = background.sample(tokens - count(" ".join(story.facts)), rng)
    positions = tuple(sorted(rng.randrange(len(sentences) + 1) for _ in story.facts))
    parts: list[str] = []
    done = 0
    for position, fact in zip(positions, story.facts, strict=True):
        parts += [*sentences[done:position], fact]
        done = position
    return BabilongSample(story, " ".join([*parts, *sentences[done:]]), positions)


def official_stories(folder: Path, task: str, seed: str) -> Iterator[Story]:
    """Yield the test stories of an official bAbI file once each, in a random order."""
    stories = read_stories(find_stories(folder, task))
    random.Random(f"{seed}/{task}").shuffle(stories)
    yield from stories


def simulated_stories(task: str, seed: str) -> Iterator[Story]:
    """Yield ever new stories of our own simulator."""
    for number in itertools.count():
        yield simulate(task, random.Random(f"{seed}/{task}/{number}"))


def fitting_stories(
    stories: Iterator[Story], length: Length, count: Callable[[str], int], number: int, task: str
) -> list[Story]:
    """Take the first stories that fit a length.

    Args:
        stories: in which order to try them.
        length: how long the context is.
        count: counts the tokens of a text.
        number: how many stories.
        task: what to call them.

    Returns:
        The stories.

    Raises:
        TitansError: there are too few, or hardly any fits.
    """
    found: list[Story] = []
    unfit = 0
    for story in stories:
        if length.fits(story, count):
            found.append(story)
        else:
            unfit += 1
        if len(found) == number or unfit > TRIES:
            break
    if len(found) < number and not unfit:
        raise TitansError(
            f"{task} has {len(found):,} of the {number:,} stories that are asked for: ask for fewer samples"
        )
    if len(found) < number:
        raise TitansError(
            f"only {len(found)} of the stories of {task} tried fit a length of {length.name} in this tokenizer, and "
            f"{number} are asked for: give a greater length, or ask for fewer samples"
        )
    return found
