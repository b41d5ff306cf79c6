"""Needles in haystacks: sentences that tell the value of a key, in noise, in books, or among others of their kind."""

from __future__ import annotations

import dataclasses
import itertools
import random
import uuid
from collections.abc import Callable

from titans.data.books import Words
from titans.data.ruler.haystacks import NOISE, Books, Haystack, Lines
from titans.data.ruler.task import Draft, RulerTask, vocabulary
from titans.errors import TitansError

NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{kind} afterwards.\n{context}\nWhat is the special magic {kind} for {keys} mentioned in the provided text? The "
    "special magic {kind} for {keys} mentioned in the provided text is"
)
SEVERAL = (
    "Some special magic {kind}s are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind}s afterwards.\n{context}\nWhat are all the special magic {kind}s for {keys} mentioned in the provided "
    "text? The special magic {kind}s for {keys} mentioned in the provided text are"
)


@dataclasses.dataclass(frozen=True)
class Kind:
    """What tells one needle task from another.

    Args:
        haystack: "noise", "books", or "needles" of which nobody asks.
        value: "number" of seven digits, or "uuid".
        key: "words", an adjective and a noun; or "uuid".
        keys: how many keys have needles.
        values: needles of each key.
        asked: of how many keys the values are asked for.
    """

    haystack: str
    value: str = "number"
    key: str = "words"
    keys: int = 1
    values: int = 1
    asked: int = 1


NEEDLES = {
    "pk": Kind("noise"),
    "n": Kind("books"),
    "w": Kind("books", value="uuid"),
    "niah_multikey_1": Kind("books", keys=4),
    "niah_multikey_2": Kind("needles"),
    "niah_multikey_3": Kind("needles", value="uuid", key="uuid"),
    "niah_multivalue": Kind("books", values=4),
    "niah_multiquery": Kind("books", keys=4, asked=4),
}


class NeedleTask(RulerTask):
    """Makes the samples of a needle task.

    Args:
        name: one of `NEEDLES`.
        count: counts the tokens of a text, without special tokens.
        words: the books or essays of the tasks that need them; the others take none.

    Raises:
        TitansError: there is no text for it, or wonderwords is not installed.
    """

    new_tokens = 128

    def __init__(self, name: str, count: Callable[[str], int], words: Words | None = None) -> None:
        super().__init__(count)
        self.name, self.kind = name, NEEDLES[name]
        self._adjectives, self._nouns = vocabulary("adjectives", "nouns")
        self.haystack: Haystack | None = None  # of needles, each sample has one of its own
        if self.kind.haystack == "noise":
            self.haystack = Lines(count, itertools.repeat(NOISE), NOISE)
        elif self.kind.haystack == "books":
            if words is None:
                raise TitansError(f"the task {name} hides its needles in books or essays: give files as the haystack")
            self.haystack = Books(count, words)
        self.digest = "" if self.haystack is None else self.haystack.digest

    def draft(self, length: int, chance: random.Random) -> Draft:
        """Draw keys, values and places."""
        return self._draft(chance, lambda: self._key(chance))

    def longest_draft(self, length: int) -> Draft:
        """Return a draft with the longest keys there are."""
        key = f"{max(self._adjectives, key=len)}-{max(self._nouns, key=len)}"
        chance = random.Random(0)
        return self._draft(chance, lambda: self._key(chance) if self.kind.key == "uuid" else key)

    def _draft(self, chance: random.Random, key: Callable[[], str]) -> Draft:
        kind = self.kind
        pairs = [(key(), [self._value(chance) for _ in range(kind.values)]) for _ in range(kind.keys)]
        needles = [self._needle(key, value) for key, values in pairs for value in values]
        draws = [chance.random() for _ in needles]
        if len(needles) > 1:
            chance.shuffle(needles)
        pairs = chance.sample(pairs, kind.asked) if kind.keys > 1 else pairs
        references = tuple(value for _, values in pairs for value in values)
        hidden = self._others(chance, key) if self.haystack is None else self.haystack
        one = needles.index(self._needle(pairs[0][0], references[0])) if len(references) == 1 else None

        def text(units: int) -> str:
            context = hidden.around(needles, units, [position for position, _ in hidden.places(units, draws)])
            template = ONE if len(references) == 1 else SEVERAL
            return template.format(kind=kind.value, keys=_listed([key for key, _ in pairs]), context=context)

        def depth(units: int) -> float | None:
            return None if one is None else hidden.places(units, draws)[one][1]

        return Draft(text, references, least=hidden.least(len(needles)), depth=depth, room=hidden.room)

    def _needle(self, key: str, value: str) -> str:
        return NEEDLE.format(kind=self.kind.value, key=key, value=value)

    def _key(self, chance: random.Random) -> str:
        if self.kind.key == "uuid":
            return _uuid(chance)
        return f"{chance.choice(self._adjectives)}-{chance.choice(self._nouns)}"

    def _value(self, chance: random.Random) -> str:
        return _uuid(chance) if self.kind.value == "uuid" else str(chance.randint(10**6, 10**7 - 1))

    def _others(self, chance: random.Random, key: Callable[[], str]) -> Lines:
        """Return needles without end, of keys that nobody asks for."""
        endless = (self._needle(key(), self._value(chance)) for _ in itertools.repeat(None))
        return Lines(self._count, endless, "needles")


def _uuid(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128), version=4))


def _listed(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + f", and {keys[-1]}"
