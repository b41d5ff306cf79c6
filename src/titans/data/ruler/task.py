"""What the tasks of RULER have in common: samples that are filled up to a length."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from titans.errors import TitansError
from titans.extras import missing


@dataclasses.dataclass(frozen=True)
class RulerSample:
    """One question.

    Args:
        text: the prompt with the beginning of its answer.
        references: the right answers.
        depth: where the needle that is asked for lies, in percent of the haystack; None where several are, or none.
        tokens: of the text; with those of the answer at most the length asked for.
    """

    text: str
    references: tuple[str, ...]
    depth: float | None
    tokens: int


@dataclasses.dataclass(frozen=True)
class Draft:
    """A sample whose length is still open.

    Args:
        text: makes the text with a number of units: lines, words, or how often words are drawn.
        references: the right answers.
        least: fewest units.
        most: most units; None for any number.
        depth: the depth of the needle asked for among a number of units.
        room: how many units more, or with a minus fewer, make up a number of tokens after some units, nearly. Default:
            not known.
    """

    text: Callable[[int], str]
    references: tuple[str, ...]
    least: int = 1
    most: int | None = None
    depth: Callable[[int], float | None] = lambda units: None
    room: Callable[[int, int], int] | None = None


class RulerTask(ABC):
    """Makes the samples of one task for one tokenizer.

    Args:
        count: counts the tokens of a text, without special tokens.

    Attributes:
        name: of the task.
        new_tokens: of the answer, part of a sample's length.
        digest: names the text that the task is made of.
        remedy: what to do where the smallest sample is too long.
    """

    name: str
    new_tokens: int
    digest: str = ""
    remedy: str = "ask for longer ones"

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count

    @abstractmethod
    def draft(self, length: int, chance: random.Random) -> Draft:
        """Draw what is asked."""

    @abstractmethod
    def longest_draft(self, length: int) -> Draft:
        """Return a draft whose smallest sample is as long as any draft's."""

    def check(self, length: int) -> None:
        """Refuse a length that some smallest sample is too long for."""
        self._check(self.longest_draft(length), length)

    def sample(self, length: int, seed: int, index: int) -> RulerSample:
        """Make a sample: as much text as fits.

        Args:
            length: most tokens of the text and the answer; one unit of text more would be too long.
            seed: of all samples.
            index: which of them; the same seed and index give the same sample.

        Returns:
            The sample.

        Raises:
            TitansError: the smallest sample is too long, or the largest too short.
        """
        draft = self.draft(length, random.Random(f"{seed}/{self.name}/{length}/{index}"))
        self._check(draft, length)
        units, tokens = self._fill(draft, length - self.new_tokens)
        return RulerSample(draft.text(units), draft.references, draft.depth(units), tokens)

    def _check(self, draft: Draft, length: int) -> None:
        least = self._count(draft.text(draft.least)) + self.new_tokens
        if least > length:
            raise TitansError(
                f"a sample of the task {self.name} has at least {least:,} tokens with its answer, more than the length "
                f"{length:,}: {self.remedy}"
            )

    def _fill(self, draft: Draft, budget: int) -> tuple[int, int]:
        """Find how many units fit a number of tokens, and how many tokens they are."""
        return self._by_room(draft, draft.room, budget) if draft.room else self._by_halves(draft, budget)

    def _by_room(self, draft: Draft, room: Callable[[int, int], int], budget: int) -> tuple[int, int]:
        """Count whole texts, few of them: tokens are nearly additive, so that this ends after two to four rounds."""
        units, fitting = draft.least, (0, 0)
        tried: set[int] = set()
        while units not in tried:
            tried.add(units)
            tokens = self._count(draft.text(units))
            if tokens <= budget:
                fitting = max(fitting, (units, tokens))
            units = max(draft.least, units + room(units, budget - tokens))
        return fitting

    def _by_halves(self, draft: Draft, budget: int) -> tuple[int, int]:
        """Halve what is open; the text of the least units fits."""
        count = functools.cache(lambda units: self._count(draft.text(units)))
        too_many = 2 * draft.least
        while (draft.most is None or too_many <= draft.most) and count(too_many) <= budget:
            too_many *= 2
        if draft.most is not None and too_many > draft.most:
            if count(draft.most) <= budget:
                raise TitansError(
                    f"a sample of the task {self.name} has at most {count(draft.most) + self.new_tokens:,} tokens with "
                    f"its answer, fewer than the length {budget + self.new_tokens:,}: ask for shorter ones"
                )
            too_many = draft.most
        found = range(draft.least, too_many)
        units = found[bisect.bisect_right(found, budget, key=count) - 1]
        return units, count(units)


@functools.cache
def vocabulary(*kinds: str) -> tuple[Sequence[str], ...]:
    """Return the words of wonderwords, from which RULER draws.

    Args:
        kinds: "adjectives", "nouns" or "verbs".

    Returns:
        The words of each kind.

    Raises:
        TitansError: wonderwords is not installed.
    """
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise missing(error, "eval", "making RULER's tasks") from error
    words = RandomWord()
    return tuple(tuple(words.filter(include_parts_of_speech=[kind])) for kind in kinds)
