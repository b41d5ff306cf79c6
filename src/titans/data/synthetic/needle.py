"""A needle in random filler: one fact of several, far apart, is asked for at the end."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import torch
from torch import Tensor

from titans.data.packing import IGNORED
from titans.data.synthetic.mqar import PairTask
from titans.data.synthetic.task import Size, draw_distinct
from titans.errors import TitansError

LEAST_DISTRACTORS = 4


@dataclasses.dataclass(frozen=True)
class Needle(PairTask):
    """Facts (a key and its value) scattered over filler, and at the end one key: its value is the answer.

    Filler has tokens of its own, so that it states nothing. The fact asked for is any of them; the others distract. A
    loss at a single answer per sequence teaches nearly nothing, so in training every key is asked, in random order,
    each at one of the last tokens; the test is the sequence that ends at the first of these questions.

    Args:
        vocabulary: tokens in all, a multiple of 4; keys are 1 … quarter − 1, values quarter … half − 1, filler the
            other half. Default 8,192.
        filler: "random", or "zero", which leaves no noise. Default "random".
        questions: keys asked at the end; None for all. Default 1.
    """

    name: ClassVar[str] = "needle"

    questions: int | None = 1

    @property
    def definition(self) -> str:
        """What is asked, in words, for the line that says which protocol was followed."""
        return (
            f"a needle in filler {self.filler}, {self.vocabulary:,} tokens, one fact asked for at the end, "
            "in training all (a task of this package, not RULER's)"
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary % 4:
            raise TitansError(f"the vocabulary is {self.vocabulary}, expected a multiple of 4")

    @property
    def keys(self) -> int:
        """How many keys there are: the tokens from 1 on."""
        return self.vocabulary // 4 - 1

    @property
    def values(self) -> int:
        """How many values there are: the tokens from a quarter of the vocabulary on."""
        return self.vocabulary // 4

    def check(self, size: Size) -> None:
        """Refuse sizes with too few distractors, and those into which the facts do not fit."""
        super().check(size)
        if size.pairs is not None and size.pairs <= LEAST_DISTRACTORS:
            raise TitansError(f"{size}: a needle needs at least {LEAST_DISTRACTORS} distractors, so 5 pairs or more")

    def fill(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        """Return filler `[B, length]`, from the upper half of the vocabulary."""
        if self.filler == "zero":
            return super().fill(rows, length, generator)
        half = self.vocabulary // 2
        return torch.randint(half, self.vocabulary, (rows, length), generator=generator)

    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make sequences, see `SyntheticTask.batch`."""
        assert size.pairs is not None  # checked
        pairs, asked = size.pairs, size.pairs if self.questions is None else min(self.questions, size.pairs)
        keys, values = self.draw_pairs(rows, pairs, generator)
        ids = self.fill(rows, size.length, generator)
        # Facts take two tokens: draw places as if each took one, then make room for the second.
        free = size.length - asked - pairs
        places = draw_distinct(rows, pairs, free, generator).sort(1).values + torch.arange(pairs)
        ids.scatter_(1, places, keys).scatter_(1, places + 1, values)
        which = draw_distinct(rows, asked, pairs, generator)
        ids[:, size.length - asked :] = keys.gather(1, which)
        labels = torch.full_like(ids, IGNORED)
        labels[:, size.length - asked :] = values.gather(1, which)
        return ids, labels

    def part(self, name: str) -> Self:
        """Return the task that asks every key for training, and this one otherwise."""
        return dataclasses.replace(self, questions=None) if name == "train" else self
