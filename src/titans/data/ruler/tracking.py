"""Variable tracking: a chain of assignments in noise, all of whose variables are asked for."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Callable

from titans.data.ruler.haystacks import NOISE, Lines
from titans.data.ruler.task import Draft, RulerTask

HOPS = 4
EXAMPLE_TOKENS = 500
PROMPT = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find "
    "all variables that are assigned the value {value} in the text above. Answer: According to the chain(s) of "
    "variable assignment in the text above, {variables} variables are assgined the value {value}, they are: "
)  # RULER's spelling


class VariableTracking(RulerTask):
    """Makes the samples of RULER's task vt: one chain of four hops, after an example in at most 500 tokens of noise.

    Args:
        count: counts the tokens of a text, without special tokens.
    """

    name, new_tokens = "vt", 30

    def __init__(self, count: Callable[[str], int]) -> None:
        super().__init__(count)
        self._noise = Lines(count, itertools.repeat(NOISE), NOISE)
        self.digest = self._noise.digest
        shown = self._chain(random.Random(0), letters=3)
        self._lines = max(shown.least, self._by_room(shown, self._noise.room, EXAMPLE_TOKENS)[0])

    def draft(self, length: int, chance: random.Random) -> Draft:
        """Draw an example and a chain."""
        shown, asked = self._chain(chance, letters=3), self._chain(chance, letters=5)
        example = f"{shown.text(self._lines)} {' '.join(shown.references)}\n\n"
        return Draft(
            lambda units: example + asked.text(units), asked.references, least=asked.least, room=self._noise.room
        )

    def longest_draft(self, length: int) -> Draft:
        """Return any draft: in all, the names and numbers have as many letters."""
        return self.draft(length, random.Random(0))

    def _chain(self, chance: random.Random, letters: int) -> Draft:
        """Draw variables, the first of which gets a number, and each later one the value of the one before."""
        names: dict[str, None] = {}
        while len(names) <= HOPS:
            names["".join(chance.choices(string.ascii_uppercase, k=letters))] = None
        variables = tuple(names)
        value = str(chance.randint(10_000, 99_998))  # RULER's range
        told = [f"VAR {variables[0]} = {value}"]
        told += [f"VAR {later} = VAR {earlier} " for earlier, later in itertools.pairwise(variables)]
        draws = [chance.random() for _ in told]

        def text(units: int) -> str:
            positions = sorted(position for position, _ in self._noise.places(units, draws))
            context = self._noise.around(told, units, positions)
            return PROMPT.format(context=context, value=value, variables=len(variables))

        return Draft(text, variables, least=self._noise.least(len(told)))
