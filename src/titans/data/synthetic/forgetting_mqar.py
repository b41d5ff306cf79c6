"""Forgetting MQAR: some keys are stated again with another value, and the last one counts."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from titans.data.synthetic.mqar import MQAR
from titans.data.synthetic.task import Size, draw_distinct
from titans.errors import TitansError


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
