"""The text around needles: lines, or the words of books, as many as a number of tokens takes."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

from titans.data.books import Words

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
DEPTHS = tuple(round(100 * step / 39) for step in range(40))
_BLOCK = 256  # units whose tokens are counted together
_CONTEXT = 32  # units that decide how those after them are cut into tokens


class Haystack(ABC):
    """A text of units, lines or words, that goes on for ever.

    Args:
        count: counts the tokens of a text.
        text: all of it, once.

    Attributes:
        joint: what stands between two units.
        digest: names the text.
    """

    joint: str

    def __init__(self, count: Callable[[str], int], text: str) -> None:
        self._count = count
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._totals = [0]  # tokens before each block

    @abstractmethod
    def units(self, start: int, stop: int) -> list[str]:
        """Return some units."""

    @abstractmethod
    def least(self, needles: int) -> int:
        """Return how many units it takes to hide some needles."""

    @abstractmethod
    def places(self, units: int, draws: Sequence[float]) -> list[tuple[int, float]]:
        """Place needles, no two at one place.

        Args:
            units: how many the haystack has.
            draws: from [0, 1), one of each needle, decide where.

        Returns:
            Of each needle the unit before which it stands, and its depth in percent.
        """

    @abstractmethod
    def around(self, needles: Sequence[str], units: int, positions: Sequence[int]) -> str:
        """Return the haystack with needles in it, each before the unit of a number."""

    def room(self, units: int, tokens: int) -> int:
        """Say how many units more, or with a minus fewer, make up a number of tokens, at most.

        Args:
            units: after which.
            tokens: how many there is room for; negative where the text is too long by so many.

        Returns:
            The units; exact where they are few and tokens are additive.
        """
        guess = self._reached(self._before(units) + tokens)
        if abs(guess - units) > _BLOCK:
            return guess - units
        reach = range(1, 2 * _BLOCK)
        if tokens >= 0:
            return bisect.bisect_right(reach, tokens, key=lambda more: self._between(units, units + more))
        return -1 - bisect.bisect_left(reach, -tokens, key=lambda less: self._between(max(0, units - less), units))

    def _parts(
        self, needles: Sequence[str], units: int, positions: Sequence[int]
    ) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the units up to a needle and the needle, by position, and at last the units after all."""
        done = 0
        for position, needle in sorted(zip(positions, needles, strict=True)):
            yield self.units(done, position), [needle]
            done = position
        yield self.units(done, units), []

    def _between(self, start: int, stop: int) -> int:
        """Count the tokens of some units after those before them."""
        first = max(0, start - _CONTEXT)
        before = self._count(self.joint.join(self.units(first, start)))
        return self._count(self.joint.join(self.units(first, stop))) - before

    def _before(self, units: int) -> float:
        """Estimate the tokens of the first units."""
        self._know(lambda: len(self._totals) > units // _BLOCK + 1)
        block, rest = divmod(units, _BLOCK)
        here, there = self._totals[block : block + 2]
        return here + (there - here) * rest / _BLOCK

    def _reached(self, tokens: float) -> int:
        """Estimate how many units make up a number of tokens."""
        self._know(lambda: self._totals[-1] > tokens)
        block = max(0, bisect.bisect_right(self._totals, tokens) - 1)
        here, there = self._totals[block : block + 2]
        return max(0, block * _BLOCK + math.floor((tokens - here) / (there - here) * _BLOCK))

    def _know(self, enough: Callable[[], bool]) -> None:
        """Count blocks until there are enough."""
        while not enough():
            start = (len(self._totals) - 1) * _BLOCK
            self._totals.append(self._totals[-1] + max(1, self._between(start, start + _BLOCK)))


class Lines(Haystack):
    """Lines; a needle is a line of its own before any of them.

    Args:
        count: counts the tokens of a text.
        lines: endless.
        text: what the digest names.
    """

    joint = "\n"

    def __init__(self, count: Callable[[str], int], lines: Iterable[str], text: str) -> None:
        super().__init__(count, text)
        self._rest, self._lines = iter(lines), list[str]()

    def units(self, start: int, stop: int) -> list[str]:
        """Return some lines."""
        self._lines += itertools.islice(self._rest, max(0, stop - len(self._lines)))
        return self._lines[start:stop]

    def least(self, needles: int) -> int:
        """Return a line for each needle."""
        return needles

    def places(self, units: int, draws: Sequence[float]) -> list[tuple[int, float]]:
        """Place needles before uniformly drawn lines, see `Haystack.places`."""
        return [(position, 100 * position / units) for position in _distinct(draws, units)]

    def around(self, needles: Sequence[str], units: int, positions: Sequence[int]) -> str:
        """Return the lines with the needles' among them."""
        lines: list[str] = []
        for part, needle in self._parts(needles, units, positions):
            lines += [*part, *needle]
        return self.joint.join(lines)


class Books(Haystack):
    """Words from the first on, and again from the first after the last; a needle stands between two sentences.

    Args:
        count: counts the tokens of a text.
        words: the text.
    """

    joint = " "

    def __init__(self, count: Callable[[str], int], words: Words) -> None:
        super().__init__(count, " ".join(words.words))
        self._text = words

    def units(self, start: int, stop: int) -> list[str]:
        """Return some words."""
        words = self._text.words
        if stop <= len(words):
            return list(words[start:stop])
        return [words[number % len(words)] for number in range(start, stop)]

    def least(self, needles: int) -> int:
        """Return one word, around which all needles may stand."""
        return 1

    def places(self, units: int, draws: Sequence[float]) -> list[tuple[int, float]]:
        """Place each needle at one of 40 depths, in percent of the sentences, see `Haystack.places`."""
        depths = [DEPTHS[number] for number in _distinct(draws, len(DEPTHS))]
        return [(self._sentence(units, depth), float(depth)) for depth in depths]

    def around(self, needles: Sequence[str], units: int, positions: Sequence[int]) -> str:
        """Return the words with the needles among them; as in RULER, a space stands even at the very start and end."""
        parts: list[str] = []
        for part, needle in self._parts(needles, units, positions):
            parts += [" ".join(part), *needle]
        return " ".join(parts)

    def _sentence(self, units: int, depth: int) -> int:
        """Return the word that begins the sentence at a depth."""
        starts, whole = self._text.starts, len(self._text.words)
        cycles, rest = divmod(units, whole)
        sentences = cycles * len(starts) + bisect.bisect_left(starts, rest)
        sentence = int(sentences * (depth / 100))  # RULER's rounding, to the last digit
        if sentence == sentences:
            return units
        return sentence // len(starts) * whole + starts[sentence % len(starts)]


def _distinct(draws: Sequence[float], options: int) -> list[int]:
    """Choose one of the options that are left for each draw from [0, 1)."""
    chosen: list[int] = []
    for draw in draws:
        number = int(draw * (options - len(chosen)))
        for taken in sorted(chosen):
            number += number >= taken
        chosen.append(number)
    return chosen
