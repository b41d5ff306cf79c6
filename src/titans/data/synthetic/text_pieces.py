"""Real text as a synthetic task: pieces of bytes, each asking for the byte after every one of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar, Self

import torch
from torch import Tensor

from titans.data.corpora import Document
from titans.data.synthetic.task import Size, SyntheticTask
from titans.errors import TitansError

HELD_OUT = 0.05  # share of the text that validation and test have each
LIMIT = 20_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class TextPieces(SyntheticTask):
    """Pieces cut at random from a text.

    Args:
        text: bytes `[M]`, uint8.
    """

    name: ClassVar[str] = "text"
    kind: ClassVar[str] = "text"

    text: Tensor

    @classmethod
    def read(cls, documents: Iterable[Document], limit: int = LIMIT) -> TextPieces:
        """Read documents, an empty line between them.

        Args:
            documents: the corpus.
            limit: read no more than so many bytes. Default 20 MB.

        Returns:
            The whole; its parts are 90 % to train on, and 5 % each for validation and test, at the end.

        Raises:
            TitansError: there is no text.
        """
        read = bytearray()
        for document in documents:
            read += b"\n\n" if read else b""
            for block in document.blocks():
                read += block.encode()
                if len(read) >= limit:
                    return cls(torch.frombuffer(read[:limit], dtype=torch.uint8))
        if not read:
            raise TitansError("the data is empty: there is no text to read")
        return cls(torch.frombuffer(read, dtype=torch.uint8))

    @property
    def vocab_size(self) -> int:
        """All bytes."""
        return 256

    @property
    def chance(self) -> float:
        """One byte of all."""
        return 1 / 256

    def check(self, size: Size) -> None:
        """Refuse pairs, and pieces for which the smallest part is too short."""
        super().check(size)
        shortest = len(self.part("test").text)
        if size.length >= shortest:
            raise TitansError(
                f"the test part of the text has {shortest:,} bytes, not the {size.length + 1:,} that a piece of "
                f"{size.length:,} takes: give more text, or shorter lengths"
            )

    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Cut pieces, see `SyntheticTask.batch`; the label of a byte is the byte after it."""
        starts = torch.randint(len(self.text) - size.length, (rows, 1), generator=generator)
        pieces = self.text[starts + torch.arange(size.length + 1)].long()
        return pieces[:, :-1], pieces[:, 1:]

    def streams(self, generator: torch.Generator) -> TextStreams:
        """Read the text as streams; see `TextStreams`."""
        return TextStreams(self.text, generator)

    def part(self, name: str) -> Self:
        """Return the text of "train", "validation" or "test"."""
        held_out = int(len(self.text) * HELD_OUT)
        cuts = {"train": (0, 2), "validation": (2, 1), "test": (1, 0)}[name]
        start = len(self.text) - cuts[0] * held_out if cuts[0] else 0
        return dataclasses.replace(self, text=self.text[start : len(self.text) - cuts[1] * held_out])


class TextStreams:
    """Streams through a text, a piece at a time: a row goes on where it stopped, or starts anew at a random place.

    A model that carries its state along learns from memories that have read far more than one piece.

    Args:
        text: bytes `[M]`, uint8.
        generator: of the places.
    """

    def __init__(self, text: Tensor, generator: torch.Generator) -> None:
        self.text, self.generator = text, generator
        self.next = torch.empty(0, dtype=torch.long)  # of each row, its first byte that was not read

    def batch(self, rows: int, length: int, restart: float) -> tuple[Tensor, Tensor, Tensor]:
        """Read the next piece of each row; another number of rows than before starts all anew.

        Args:
            rows: how many streams.
            length: bytes of the pieces.
            restart: probability that a row starts anew.

        Returns:
            Bytes and the byte after each, `[rows, length]`, and which rows start anew, `[rows]`, bool.
        """
        if len(self.next) != rows:
            self.next = torch.full((rows,), len(self.text))
        reset = torch.rand(rows, generator=self.generator) < restart
        reset |= self.next + length >= len(self.text)
        places = torch.randint(len(self.text) - length, (rows,), generator=self.generator)
        first = torch.where(reset, places, self.next)
        pieces = self.text[first.unsqueeze(1) + torch.arange(length + 1)].long()
        self.next = first + length
        return pieces[:, :-1], pieces[:, 1:], reset
