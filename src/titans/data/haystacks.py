"""The text around a needle: lines of noise, or the words of books, as many as a number of tokens takes."""

from __future__ import annotations

import bisect
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

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
    def place(self, units: int, draw: float) -> tuple[int, float]:
        """Place a needle.

        Args:
            units: how many the haystack has.
            draw: from [0, 1), decides where.

        Returns:
            The unit before which the needle stands, and its depth in percent.
        """

    @abstractmethod
    def around(self, needle: str, units: int, position: int) -> str:
        """Return the haystack with the needle in it."""

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
    """One line, over and over; the needle is a line of its own before any of them.

    Args:
        count: counts the tokens of a text.
        line: the line.
    """

    joint = "\n"

    def __init__(self, count: Callable[[str], int], line: str) -> None:
        super().__init__(count, line)
        self._line = line

    def units(self, start: int, stop: int) -> list[str]:
        """Return some lines."""
        return [self._line] * (stop - start)

    def place(self, units: int, draw: float) -> tuple[int, float]:
        """Place a needle before a uniformly drawn line, see `Haystack.place`."""
        position = int(draw * units)
        return position, 100 * position / units

    def around(self, needle: str, units: int, position: int) -> str:
        """Return the lines with the needle's among them."""
        return self.joint.join([*self.units(0, position), needle, *self.units(position, units)])


class Books(Haystack):
    """Words from the first on, and again from the first after the last; the needle stands between two sentences.

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

    def around(self, needle: str, units: int, position: int) -> str:
        """Return the words with the needle among them; as in RULER, a space stands even at the very start and end."""
        return " ".join((" ".join(self.units(0, position)), needle, " ".join(self.units(position, units))))

    def place(self, units: int, draw: float) -> tuple[int, float]:
        """Place a needle at one of 40 depths, in percent of the sentences, see `Haystack.place`."""
        depth = DEPTHS[int(draw * len(DEPTHS))]
        starts, whole = self._text.starts, len(self._text.words)
        cycles, rest = divmod(units, whole)
        sentences = cycles * len(starts) + bisect.bisect_left(starts, rest)
        sentence = int(sentences * (depth / 100))  # RULER's rounding, to the last digit
        if sentence == sentences:
            return units, float(depth)
        return sentence // len(starts) * whole + starts[sentence % len(starts)], float(depth)
