"""Counting words: the ten most common of a numbered list, and the three most frequent of a coded text."""

from __future__ import annotations

import itertools
import math
import random
import string
from collections.abc import Callable, Sequence

from titans.data.ruler.task import Draft, RulerTask, vocabulary

COMMON = 10  # words that are asked for
SHORT = 4096  # RULER's bound: in shorter samples, words are repeated less
COMMON_PROMPT = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 "
    "words that appear most often in the list are:"
)
FREQUENT = 3
FREQUENT_PROMPT = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
    "three most frequently appeared words in the above coded text? Answer: According to the coded text above, the "
    "three most frequently appeared words are:"
)
LETTERS = 6  # of a coded word
TOKENS_PER_CODE = 50  # of a length, for each word of the code
LEAST_DRAWS = 80  # from which on the third word comes more often than the fourth
ZETA_2 = math.pi**2 / 6


class CommonWords(RulerTask):
    """Makes the samples of RULER's task cwe: ten words come ten times as often as all others; after one example.

    Args:
        count: counts the tokens of a text, without special tokens.
    """

    name, new_tokens = "cwe", 120
    remedy = f"ask for longer ones (below {SHORT:,}, words are repeated less), or leave cwe out"

    def __init__(self, count: Callable[[str], int]) -> None:
        super().__init__(count)
        self._words = sorted(set(itertools.chain(*vocabulary("nouns", "adjectives", "verbs"))))

    def draft(self, length: int, chance: random.Random) -> Draft:
        """Draw an example and words; a unit is a word."""
        return self._draft(length, chance.sample(self._words, 40), chance.sample(self._words, len(self._words)), chance)

    def longest_draft(self, length: int) -> Draft:
        """Return a draft of the longest words."""
        longest = sorted(self._words, key=len, reverse=True)
        return self._draft(length, longest, longest, random.Random(0))

    def _draft(self, length: int, shown: Sequence[str], words: Sequence[str], chance: random.Random) -> Draft:
        few = length < SHORT
        example = _list(shown[:20], 3, 1, chance.random()) if few else _list(shown[:40], 10, 3, chance.random())
        answer = " ".join(_numbered(shown[:COMMON]))
        before = f"{COMMON_PROMPT.format(context=example)} {answer}\n"
        order = chance.random()

        def text(units: int) -> str:
            often, seldom = (6, 1) if few else (30, 3)
            return before + COMMON_PROMPT.format(context=_list(words[:units], often, seldom, order))

        return Draft(text, tuple(words[:COMMON]), least=COMMON + 1, most=len(words))


def _list(words: Sequence[str], often: int, seldom: int, order: float) -> str:
    """Number the first ten words, often, and the others, seldom, in a random order."""
    repeated = [*words[:COMMON]] * often + [*words[COMMON:]] * seldom
    random.Random(order).shuffle(repeated)
    return " ".join(_numbered(repeated))


def _numbered(words: Sequence[str]) -> list[str]:
    return [f"{number}. {word}" for number, word in enumerate(words, start=1)]


class FrequentWords(RulerTask):
    """Makes the samples of RULER's task fwe: made-up words whose number falls with the square of their rank.

    The first in rank is written as dots and counts as noise; asked for are the three after it.

    Args:
        count: counts the tokens of a text, without special tokens.
    """

    name, new_tokens = "fwe", 50

    def draft(self, length: int, chance: random.Random) -> Draft:
        """Draw words; a unit is a word that is drawn, of which those in the text are the whole times."""
        names: dict[str, None] = {}
        while len(names) < max(FREQUENT + 2, length // TOKENS_PER_CODE):
            names["".join(chance.choices(string.ascii_lowercase, k=LETTERS))] = None
        code = ["...", *names][: len(names)]
        order = chance.random()

        def text(units: int) -> str:
            times = [int(units / rank**2 / ZETA_2) for rank in range(1, len(code) + 1)]
            words = [word for word, n in zip(code, times, strict=True) for _ in range(n)]
            random.Random(order).shuffle(words)
            return FREQUENT_PROMPT.format(context=" ".join(words))

        return Draft(text, tuple(code[1 : FREQUENT + 1]), least=LEAST_DRAWS)

    def longest_draft(self, length: int) -> Draft:
        """Return any draft; made-up words differ in tokens by little."""
        return self.draft(length, random.Random(0))
