"""Fact recall: facts stated once in real text and asked for later, in bytes."""

from __future__ import annotations

import dataclasses
import string
from typing import ClassVar, Self

import torch
from torch import Tensor

from titans.data.packing import IGNORED
from titans.data.synthetic.task import Size, SyntheticTask, draw_distinct
from titans.errors import TitansError

MARK = "#"
KEYS = string.ascii_uppercase
VALUES = string.ascii_lowercase
FILLER_SHARE = 0.15  # of the parts of a training sequence
MOST_FILLER = 11  # bytes of text per such part


@dataclasses.dataclass(frozen=True, eq=False)
class FactRecall(SyntheticTask):
    """Facts `#Kv` in text: once stated, the mark and the key must bring back the value.

    Every sequence draws its facts anew, in training and in the test, so an answer can come from the sequence only.
    Single pairs are not held out: a model soon knows which pairs never occur and would not answer with one.
    Training states each fact once and asks for those stated round after round, so that no answer is always near. The
    test states all facts, goes on with text, and ends with one question.

    Args:
        text: where text is cut from, bytes `[M]`, uint8.
        facts: stated in a sequence, at most 26. Default 8.
        dense: whether sequences are those of the training. Default false.
    """

    name: ClassVar[str] = "fact-recall"
    kind: ClassVar[str] = "recall"

    text: Tensor
    facts: int = 8
    dense: bool = False

    @property
    def vocab_size(self) -> int:
        """All bytes."""
        return 256

    @property
    def chance(self) -> float:
        """One value of all."""
        return 1 / len(VALUES)

    def size(self, distance: int) -> Size:
        """Return the size of a test with `distance` bytes of text between the facts and the question."""
        return Size(3 * self.facts + distance + 2)

    def check(self, size: Size) -> None:
        """Refuse lengths into which the facts and the question do not fit, and those for which the text is short."""
        super().check(size)
        distance = size.length - self.size(0).length
        if not 0 <= distance <= len(self.text):
            raise TitansError(
                f"{size}: expected from {self.size(0)} bytes, for facts and question, to {self.size(len(self.text))}, "
                "for which the text lasts"
            )

    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make sequences, see `SyntheticTask.batch`."""
        make = self._dense if self.dense else self._test
        ids, labels = (torch.tensor(x) for x in zip(*(make(size.length, generator) for _ in range(rows)), strict=True))
        return ids, labels

    def part(self, name: str) -> Self:
        """Return the task that asks all the time for training, and the one that asks at the end otherwise."""
        return dataclasses.replace(self, dense=name == "train")

    def _test(self, length: int, generator: torch.Generator) -> tuple[list[int], list[int]]:
        facts = self._draw(generator)
        key = list(facts)[_integer(len(facts), generator)]
        stated = "".join(f"{MARK}{k}{v}" for k, v in facts.items())
        text = self._cut(length - self.size(0).length, generator)
        return [*stated.encode(), *text, *f"{MARK}{key}".encode()], [IGNORED] * (length - 1) + [ord(facts[key])]

    def _dense(self, length: int, generator: torch.Generator) -> tuple[list[int], list[int]]:
        facts = self._draw(generator)
        unstated, stated, queue = list(facts), list[str](), list[str]()
        ids: list[int] = []
        labels: list[int] = []
        while len(ids) < length:
            draw = float(torch.rand((), generator=generator))
            if draw < FILLER_SHARE:
                text = self._cut(1 + _integer(MOST_FILLER, generator), generator)
                ids, labels = ids + text, labels + [IGNORED] * len(text)
                continue
            asked = not unstated or (draw >= 0.6 and bool(stated))
            if asked:
                queue = queue or [stated[i] for i in torch.randperm(len(stated), generator=generator).tolist()]
                key = queue.pop()
            else:
                key = unstated.pop()
                stated.append(key)
            ids += f"{MARK}{key}{facts[key]}".encode()
            labels += [IGNORED, ord(facts[key]) if asked else IGNORED, IGNORED]
        return ids[:length], labels[:length]

    def _draw(self, generator: torch.Generator) -> dict[str, str]:
        keys = draw_distinct(1, self.facts, len(KEYS), generator)[0].tolist()
        return {KEYS[key]: VALUES[_integer(len(VALUES), generator)] for key in keys}

    def _cut(self, length: int, generator: torch.Generator) -> list[int]:
        start = _integer(len(self.text) - length + 1, generator)
        cut: list[int] = self.text[start : start + length].tolist()
        return cut


def _integer(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(below, (), generator=generator))
