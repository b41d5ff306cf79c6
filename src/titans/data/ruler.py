"""S-NIAH, the single needle in a haystack of RULER (Hsieh et al., 2024): samples of any length in a model's own tokens.

The pass-key task PK is RULER's niah_single_1, the number task N its niah_single_2, the word task W its niah_single_3.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import uuid
from collections.abc import Callable, Sequence

from titans.data.books import Words
from titans.data.haystacks import NOISE, Books, Haystack, Lines
from titans.errors import TitansError

NEW_TOKENS = 128  # of the answer, part of a sample's length
NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
PROMPT = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{kind} afterwards.\n{context}\nWhat is the special magic {kind} for {key} mentioned in the provided text?"
)
ANSWER_PREFIX = " The special magic {kind} for {key} mentioned in the provided text is"
TASKS = {"pk": ("noise", "number"), "n": ("books", "number"), "w": ("books", "uuid")}
"""The haystack and the kind of value of each task."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """One question.

    Args:
        text: the prompt with the beginning of its answer.
        references: the right answers; one.
        depth: where the needle lies, in percent of the haystack.
        tokens: of the text; with the 128 of the answer at most the length asked for.
    """

    text: str
    references: tuple[str, ...]
    depth: float
    tokens: int


class NeedleTask:
    """Makes the samples of one task for one tokenizer.

    Args:
        name: "pk", "n" or "w".
        count: counts the tokens of a text, without special tokens.
        words: the books or essays of n and w; pk takes none.

    Raises:
        TitansError: there is no such task, there is no text for it, or wonderwords is not installed.
    """

    def __init__(self, name: str, count: Callable[[str], int], words: Words | None = None) -> None:
        if name not in TASKS:
            raise TitansError(f'there is no needle task "{name}": expected {", ".join(TASKS)}')
        haystack, self.kind = TASKS[name]
        if haystack == "books" and words is None:
            raise TitansError(f"the task {name} hides its needle in books or essays: give their files as the haystack")
        self.name, self._count = name, count
        self._adjectives, self._nouns = _vocabulary()
        self.haystack: Haystack = Lines(count, NOISE) if words is None or haystack == "noise" else Books(count, words)

    def check(self, length: int) -> None:
        """Refuse a length for which the smallest sample, one line or word and a long key, is too long."""
        key = f"{max(self._adjectives, key=len)}-{max(self._nouns, key=len)}"
        self._check(self._count(self._text(key, self._value(random.Random(0)), 0.0)(1)), length)

    def _check(self, smallest: int, length: int) -> None:
        least = smallest + NEW_TOKENS
        if least > length:
            raise TitansError(
                f"a sample of the task {self.name} has at least {least:,} tokens with its answer, more than the length "
                f"{length:,}: ask for longer ones"
            )

    def sample(self, length: int, seed: int, index: int) -> Sample:
        """Make a sample: as much haystack as fits.

        Args:
            length: most tokens of the text and the 128 of the answer; one more line or word would be too long.
            seed: of all samples.
            index: which of them; the same seed and index give the same sample.

        Returns:
            The sample.

        Raises:
            TitansError: the smallest sample is too long.
        """
        chance = random.Random(f"{seed}/{self.name}/{length}/{index}")
        key = f"{chance.choice(self._adjectives)}-{chance.choice(self._nouns)}"
        value, draw = self._value(chance), chance.random()
        text = self._text(key, value, draw)
        self._check(self._count(text(1)), length)
        units, tokens = self._fill(text, length - NEW_TOKENS)
        return Sample(text(units), (value,), self.haystack.place(units, draw)[1], tokens)

    def _value(self, chance: random.Random) -> str:
        if self.kind == "number":
            return str(chance.randint(10**6, 10**7 - 1))
        return str(uuid.UUID(int=chance.getrandbits(128), version=4))

    def _text(self, key: str, value: str, draw: float) -> Callable[[int], str]:
        """Return what makes the text with a number of lines or words."""
        needle = NEEDLE.format(kind=self.kind, key=key, value=value)

        def text(units: int) -> str:
            context = self.haystack.around(needle, units, self.haystack.place(units, draw)[0])
            return (PROMPT + ANSWER_PREFIX).format(kind=self.kind, key=key, context=context)

        return text

    def _fill(self, text: Callable[[int], str], budget: int) -> tuple[int, int]:
        """Find how many lines or words fit a number of tokens; counts whole texts, few of them."""
        units, fitting = 1, (0, 0)
        tried: set[int] = set()
        while units not in tried:  # tokens are nearly additive, so that this ends after two to four rounds
            tried.add(units)
            tokens = self._count(text(units))
            if tokens <= budget:
                fitting = max(fitting, (units, tokens))
            units = max(1, units + self.haystack.room(units, budget - tokens))
        return fitting


@functools.cache
def _vocabulary() -> tuple[Sequence[str], Sequence[str]]:
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise TitansError(
            "the keys of needles come from the package wonderwords, which is missing: pip install -e '.[eval]'"
        ) from error
    words, kinds = RandomWord(), ("adjectives", "nouns")
    adjectives, nouns = (tuple(words.filter(include_parts_of_speech=[kind])) for kind in kinds)
    return adjectives, nouns
