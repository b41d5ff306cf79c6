"""What all synthetic tasks are: small tasks, made without end from a seed, that ask one ability of a model."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from titans.errors import TitansError


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the sequences of a batch are; written `256/16`, or `256` where there is nothing to keep.

    Args:
        length: tokens N.
        pairs: facts stated in them. Default: none.
    """

    length: int
    pairs: int | None = None

    def __str__(self) -> str:
        return f"{self.length}" if self.pairs is None else f"{self.length}/{self.pairs}"


def parse_sizes(words: Sequence[str | int]) -> tuple[Size, ...]:
    """Read sizes as people write them.

    Args:
        words: each a length (`256`), a length and a number of pairs (`256/16`), or a range of lengths (`3-40`),
            which stands for every length in it.

    Returns:
        The sizes, in order.

    Raises:
        TitansError: one of them is none of these.
    """
    sizes: list[Size] = []
    for word in words:
        match = re.fullmatch(r"(\d+)(?:/(\d+)|-(\d+))?", str(word).strip())
        first, pairs, last = (None if part is None else int(part) for part in match.groups()) if match else (0,) * 3
        if not first or pairs == 0 or (last is not None and last < first):
            raise TitansError(
                f'"{word}" is no size: expected a length as 256, length/pairs as 256/16, or a range as 3-40'
            )
        sizes += [Size(length, pairs) for length in range(first, (last or first) + 1)]
    if not sizes:
        raise TitansError("there are no sizes: name at least one length, as 256")
    return tuple(sizes)


def shorten(sizes: Sequence[str]) -> str:
    """List sizes for a sentence; of many only the first and the last."""
    return ", ".join(sizes) if len(sizes) < 7 else f"{sizes[0]} … {sizes[-1]}"


class SyntheticTask(ABC):
    """A task for causal language models, at any size.

    Attributes:
        name: what it is called.
        kind: "recall" (some positions are asked), "state" (every position is) or "text" (every next byte is).
    """

    name: ClassVar[str]
    kind: ClassVar[str]

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Tokens that inputs and labels are drawn from: what a model's `vocab_size` must be at least."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """Accuracy of a guess that knows the possible answers and nothing of the sequence."""

    @property
    def definition(self) -> str:
        """What is asked, in words, for the line that says which protocol was followed."""
        return self.name

    @property
    def deviations(self) -> tuple[str, ...]:
        """In what a training and test on it deviate from what is published."""
        return ()

    def check(self, size: Size) -> None:
        """Refuse a size at which the task cannot be set.

        Args:
            size: the size.

        Raises:
            TitansError: it is too short, or has pairs where there are none, or none where there must be.
        """
        if size.pairs is not None:
            raise TitansError(f"{self.name} states no pairs, so its sizes are lengths: write {size.length}, not {size}")

    @abstractmethod
    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make sequences.

        Args:
            rows: sequences B.
            size: how large; checked already.
            generator: of everything random, on the CPU.

        Returns:
            Tokens and labels, both `[B, T]`, int64. The label at position t is what the model must predict after
            reading t (it is not the next token, and is not shifted), -100 where nothing is asked.
        """

    def part(self, name: str) -> Self:
        """Return the task as it is set for "train", "validation" or "test"; most are the same, with other seeds."""
        return self


def draw_distinct(rows: int, count: int, among: int, generator: torch.Generator) -> Tensor:
    """Draw different numbers below `among`, `[rows, count]`, each set and each order as likely as any other."""
    return torch.rand(rows, among, dtype=torch.float64, generator=generator).topk(count).indices
