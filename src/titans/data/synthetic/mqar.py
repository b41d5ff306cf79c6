"""MQAR, multi-query associative recall (Arora, Eyuboglu et al., *Zoology*, 2023): pairs, then queries in filler.

The definition is that of the published generator `multiquery_ar` of Zoology: every key and every value of a sequence
differs from its others; the part after the pairs is cut into places of two tokens, and each key is asked once, at the
first token of a place drawn without replacement with a probability ∝ i^(a−1), i = 1, 2, …, key by key; its value is
the label there and is not shown. All other tokens after the pairs are filler: uniform over the whole vocabulary (the
published default), or 0 (as in the paper's figures).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from titans.data.packing import IGNORED
from titans.data.synthetic.task import Size, SyntheticTask, draw_distinct
from titans.errors import TitansError

POWER = 0.01  # a
VOCABULARY = 8192
FILLERS = ("random", "zero")


@dataclasses.dataclass(frozen=True)
class PairTask(SyntheticTask):
    """A synthetic task that states pairs of a key and a value: token 0, then keys, then as many values and 0 together.

    Args:
        vocabulary: tokens in all, even; keys are 1 … half − 1, values half … vocabulary − 1. Default 8,192.
        filler: "random" or "zero": what stands where nothing is stated or asked. Default "random".
    """

    kind: ClassVar[str] = "recall"

    vocabulary: int = VOCABULARY
    filler: str = "random"

    def __post_init__(self) -> None:
        if self.vocabulary < 8 or self.vocabulary % 2:
            raise TitansError(f"the vocabulary is {self.vocabulary}, expected an even number of at least 8")
        if self.filler not in FILLERS:
            raise TitansError(f'the filler is "{self.filler}", expected one of {", ".join(FILLERS)}')

    @property
    def vocab_size(self) -> int:
        """Tokens in all."""
        return self.vocabulary

    @property
    def keys(self) -> int:
        """How many keys there are: the tokens from 1 on."""
        return self.vocabulary // 2 - 1

    @property
    def values(self) -> int:
        """How many values there are: the tokens from half the vocabulary on."""
        return self.vocabulary // 2

    @property
    def chance(self) -> float:
        """One value of all; one of those stated would be right once in as many tries as there are pairs."""
        return 1 / self.values

    def stated(self, pairs: int) -> int:
        """Return how many pairs are stated where `pairs` different keys are."""
        return pairs

    def check(self, size: Size) -> None:
        """Refuse sizes without pairs, and those into which they do not fit."""
        if size.pairs is None:
            raise TitansError(f"{self.name} needs a number of pairs with each length: write {size}/4 for four")
        if size.pairs > self.keys:
            raise TitansError(f"{size}: there are only {self.keys:,} keys, expected at most as many pairs")
        needed = 2 * self.stated(size.pairs) + 2 * size.pairs
        if needed > size.length:
            raise TitansError(
                f"{size}: {size.pairs} pairs and their queries take {needed} tokens, expected a longer one"
            )

    def draw_pairs(self, rows: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw different keys and different values, both `[B, pairs]`."""
        keys = 1 + draw_distinct(rows, pairs, self.keys, generator)
        return keys, self.values + draw_distinct(rows, pairs, self.values, generator)

    def fill(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        """Return filler `[B, length]`."""
        if self.filler == "zero":
            return torch.zeros(rows, length, dtype=torch.int64)
        return torch.randint(self.vocabulary, (rows, length), generator=generator)


@dataclasses.dataclass(frozen=True)
class MQAR(PairTask):
    """Pairs, then each key once: what was its value?

    Args:
        vocabulary: tokens in all, even; keys are 1 … half − 1, values half … vocabulary − 1. Default 8,192.
        filler: "random" or "zero": what stands after the pairs where nothing is asked. Default "random".
        power: a of the gaps' power law i^(a−1); 1 is uniform. Default 0.01.
    """

    name: ClassVar[str] = "mqar"
    generator: ClassVar[str] = "multiquery_ar"

    power: float = POWER

    @property
    def definition(self) -> str:
        """What is asked, in words, for the line that says which protocol was followed."""
        return f"{self.name} as Zoology's {self.generator} makes it, {self.vocabulary:,} tokens, filler {self.filler}"

    @property
    def deviations(self) -> tuple[str, ...]:
        """In what a training and test on it deviate from what is published."""
        found = ["sequences drawn anew at every step", "sizes and steps as given", "blocks with feed-forward layers"]
        if self.vocabulary != VOCABULARY:
            found.append(f"not {VOCABULARY:,} tokens")
        return tuple(found)

    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make sequences, see `SyntheticTask.batch`."""
        assert size.pairs is not None  # checked
        keys, values = self.draw_pairs(rows, size.pairs, generator)
        return self.assemble(keys, values, torch.stack([keys, values], -1).flatten(1), size.length, generator)

    def assemble(
        self, keys: Tensor, answers: Tensor, context: Tensor, length: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Put queries for keys `[B, pairs]`, with these answers, and filler behind what is stated, `[B, c]`.

        Tokens and labels `[B, length]` come back.
        """
        rows, start = len(keys), context.shape[1]
        places = start + 2 * draw_places(rows, keys.shape[1], (length - start) // 2, self.power, generator)
        ids = torch.cat([context, self.fill(rows, length - start, generator)], 1).scatter_(1, places, keys)
        return ids, torch.full_like(ids, IGNORED).scatter_(1, places, answers)


@dataclasses.dataclass(frozen=True)
class ForgettingMQAR(MQAR):
    """MQAR in which, after all pairs, a share of the keys is rewritten, as in Zoology's `forgetting_mqar`.

    A new value always differs from the key's old one, and from all other values of the sequence. (In the published
    generator it may, once in some thousand times, be the old one.)

    Args:
        vocabulary: tokens in all, even; keys are 1 … half − 1, values half … vocabulary − 1. Default 8,192.
        filler: "random" or "zero": what stands after the pairs where nothing is asked. Default "random".
        power: a of the gaps' power law i^(a−1); 1 is uniform. Default 0.01.
        rewritten: share of the keys that are stated again, at least one key. Default 0.5, the published one.
    """

    name: ClassVar[str] = "forgetting-mqar"
    generator: ClassVar[str] = "forgetting_mqar"

    rewritten: float = 0.5

    @property
    def deviations(self) -> tuple[str, ...]:
        """In what a training and test on it deviate from what is published."""
        return (*super().deviations, "a new value is never the old one")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rewritten <= 1:
            raise TitansError(f"the share of rewritten keys is {self.rewritten}, expected more than 0 and at most 1")

    def stated(self, pairs: int) -> int:
        """Return how many pairs are stated: all, and the rewritten ones again."""
        return pairs + self.updates(pairs)

    def updates(self, pairs: int) -> int:
        """Return how many keys are rewritten."""
        return max(1, round(self.rewritten * pairs))

    def check(self, size: Size) -> None:
        """Refuse what MQAR refuses, and more values than there are."""
        super().check(size)
        if self.stated(size.pairs or 0) > self.values:
            raise TitansError(f"{size}: there are only {self.values:,} values, expected fewer pairs")

    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make sequences, see `SyntheticTask.batch`."""
        assert size.pairs is not None  # checked
        keys = 1 + draw_distinct(rows, size.pairs, self.keys, generator)
        values = self.values + draw_distinct(rows, self.stated(size.pairs), self.values, generator)
        again = draw_distinct(rows, self.updates(size.pairs), size.pairs, generator)  # which keys
        stated = torch.cat([keys, keys.gather(1, again)], 1)
        answers = values[:, : size.pairs].scatter(1, again, values[:, size.pairs :])
        return self.assemble(keys, answers, torch.stack([stated, values], -1).flatten(1), size.length, generator)


def draw_places(rows: int, count: int, places: int, power: float, generator: torch.Generator) -> Tensor:
    """Draw `[B, count]` places from 0 without replacement, the i-th (from 1) with probability ∝ i^(power−1).

    The keys of log-probability plus Gumbel noise, in descending order, are such draws (Efraimidis and Spirakis, 2006).
    """
    log_probability = (power - 1) * torch.arange(1, places + 1, dtype=torch.float64).log()
    noise = torch.rand(rows, places, dtype=torch.float64, generator=generator).clamp_(min=1e-300)
    return (log_probability - (-noise.log()).log()).topk(count).indices
