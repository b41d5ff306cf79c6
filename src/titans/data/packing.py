"""Cut documents into pieces, and order the pieces so that memory can be carried and little is padded.

A piece is up to `sequence_length` consecutive tokens of one document; its targets are the tokens one place
later, the first token of the next piece included, so every token of a document but its first is predicted
exactly once. No piece spans two documents. Pieces of a document that has several come in order, row by row of
the batch:

- *streamed* steps give every row the next piece of its own stream of documents, with `reset` where a document
  starts. The streams are equally long: shuffled documents laid end to end and cut into one part for each row,
  so that at most one document for each row is cut in two, the second part starting with a fresh memory.
- *single* steps hold pieces that need no memory from an earlier step (documents of one piece; all pieces when
  `carry_state` is off), put together by similar length, so that a short document is not padded to a long one.

The order is a pure function of the lengths, the seed and the epoch: any step can be addressed directly.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from titans.data.indexed_dataset import IndexedDataset
from titans.errors import TitansError

IGNORED = -100
"""The target that no loss is taken at (the convention of PyTorch and Hugging Face)."""

_SORTED_STEPS = 64  # single pieces are shuffled, then sorted by length within this many steps

Integers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Which piece each row reads at each step of one epoch.

    Args:
        document: document number `[S, B]`, int64; -1 where a row has nothing to read.
        start: the piece's first token within the document `[S, B]`, int64.
        reset: whether the row starts with a fresh memory `[S, B]`, bool.
        streamed: whether the step continues the streams `[S]`, bool.
    """

    document: Integers
    start: Integers
    reset: npt.NDArray[np.bool_]
    streamed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.streamed)


def make_schedule(
    lengths: Integers, sequence_length: int, rows: int, *, carry_state: bool, seed: int | tuple[int, int]
) -> Schedule:
    """Order the pieces of one epoch.

    Args:
        lengths: tokens of each document `[D]`.
        sequence_length: tokens of a full piece.
        rows: rows of a batch, B.
        carry_state: whether the pieces of a long document follow each other in one row.
        seed: of the order, with the epoch where there are several. The number of steps does not depend on it.

    Returns:
        The schedule.
    """
    rng = np.random.default_rng(seed)
    pieces = -(-(lengths - 1) // sequence_length)  # the last token is only ever a target
    long = np.flatnonzero(pieces > 1) if carry_state else np.empty(0, np.int64)
    single = np.flatnonzero(pieces == 1) if carry_state else np.flatnonzero(pieces > 0)
    streams = _stream_steps(long, pieces, rows, rng)
    singles = _single_steps(single, pieces, lengths, sequence_length, rows, rng)
    streamed = rng.permutation(np.repeat([True, False], [len(streams[0]), len(singles[0])]))
    merged = [np.empty((len(streamed), rows), dtype=part.dtype) for part in streams]
    for whole, from_streams, from_singles in zip(merged, streams, singles, strict=True):
        whole[streamed], whole[~streamed] = from_streams, from_singles
    document, piece, reset = merged
    return Schedule(document.astype(np.int64), piece.astype(np.int64) * sequence_length, reset.astype(bool), streamed)


def _stream_steps(
    long: Integers, pieces: Integers, rows: int, rng: np.random.Generator
) -> tuple[Integers, Integers, Integers]:
    """Lay the shuffled documents end to end and cut the line into one equal stream for each row."""
    document, piece = _expand(rng.permutation(long), pieces)
    steps = -(-len(document) // rows)
    filled = np.full((2, rows * steps), -1)
    filled[:, : len(document)] = document, piece
    document_of, piece_of = filled.reshape(2, rows, steps).transpose(0, 2, 1)
    reset = (piece_of <= 0).astype(np.int64)
    reset[:1] = 1
    return document_of, np.maximum(piece_of, 0), reset


def _expand(documents: Integers, pieces: Integers) -> tuple[Integers, Integers]:
    """List the pieces of documents one by one: the document of each, and its place there."""
    counts = pieces[documents]
    document = np.repeat(documents, counts)
    return document, np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)


def _single_steps(
    single: Integers,
    pieces: Integers,
    lengths: Integers,
    sequence_length: int,
    rows: int,
    rng: np.random.Generator,
) -> tuple[Integers, Integers, Integers]:
    """Shuffle the pieces, sort windows of them by length, cut into steps, shuffle the steps."""
    document, piece = _expand(single, pieces)
    size = np.minimum(lengths[document] - 1 - piece * sequence_length, sequence_length)
    order = rng.permutation(len(document))
    window = np.arange(len(order)) // (_SORTED_STEPS * rows)
    order = order[np.lexsort((size[order], window))]
    steps = -(-len(order) // rows)
    filled = np.full((2, steps * rows), -1)
    filled[:, : len(order)] = document[order], piece[order]
    document_of, piece_of = filled.reshape(2, steps, rows)[:, rng.permutation(steps)]
    return document_of, np.maximum(piece_of, 0), np.ones((steps, rows), np.int64)


class PieceDataset(Dataset[dict[str, Any]]):
    """Batches of pieces by step number; step k of epoch e is item `e * len(self) + k`.

    An item holds `input_ids` and `labels` `[B, n]` (int64, n ≤ `sequence_length`; labels are the next tokens,
    already shifted, -100 where there is none), `attention_mask` `[B, n]` only where something is padded
    (right), `reset` `[B]` bool, and `streamed`, a bool.

    Args:
        documents: their token ids.
        sequence_length: tokens of a full piece.
        rows: rows of the batch of all processes together.
        carry_state: see `make_schedule`.
        seed: of the order.
        pad_token_id: what fills the padding. Default 0.
        process: this process's place, counted from 0, of `processes`; it gets its share of the rows. Default
            0 of 1.

    Raises:
        TitansError: no document has two tokens, so that there is nothing to predict.
    """

    def __init__(
        self,
        documents: IndexedDataset,
        sequence_length: int,
        rows: int,
        *,
        carry_state: bool,
        seed: int = 0,
        pad_token_id: int = 0,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        if not (documents.lengths > 1).any():
            raise TitansError("the data is empty: no document has at least two tokens, so there is nothing to predict")
        self.documents, self.sequence_length, self.rows = documents, sequence_length, rows
        self.carry_state, self.seed, self.pad_token_id = carry_state, seed, pad_token_id
        mine = rows // processes
        self._mine = slice(process * mine, (process + 1) * mine)
        self._epoch, self._schedule = 0, self.schedule(0)

    def schedule(self, epoch: int) -> Schedule:
        """The order of one epoch, all rows."""
        return make_schedule(
            self.documents.lengths,
            self.sequence_length,
            self.rows,
            carry_state=self.carry_state,
            seed=(self.seed, epoch),
        )

    @property
    def order(self) -> dict[str, int]:
        """What decides which pieces each step reads; two datasets of equal order differ in their tokens at most."""
        return {
            "rows": self.rows,
            "processes": self.rows // (self._mine.stop - self._mine.start),
            "sequence_length": self.sequence_length,
            "carry_state": self.carry_state,
            "seed": self.seed,
            "documents": len(self.documents),
            "tokens": int(self.documents.lengths.sum()),
        }

    def __len__(self) -> int:
        return len(self._schedule)

    def __getitem__(self, index: int) -> dict[str, Any]:
        epoch, step = divmod(index, len(self))
        if epoch != self._epoch:
            self._epoch, self._schedule = epoch, self.schedule(epoch)
        plan = self._schedule
        pieces = [
            self.documents.read(document, start, start + self.sequence_length + 1)
            if document >= 0
            else np.empty(0, int)
            for document, start in zip(plan.document[step, self._mine], plan.start[step, self._mine], strict=True)
        ]
        batch: dict[str, Any] = _pad(pieces, self.pad_token_id)
        batch["reset"] = torch.from_numpy(plan.reset[step, self._mine])
        batch["streamed"] = bool(plan.streamed[step])
        return batch


def _pad(pieces: list[Integers], pad_token_id: int) -> dict[str, Tensor]:
    sizes = torch.tensor([max(len(piece) - 1, 0) for piece in pieces])
    width = max(int(sizes.max()), 1)
    input_ids = torch.full((len(pieces), width), pad_token_id)
    labels = torch.full((len(pieces), width), IGNORED)
    for row, (piece, size) in enumerate(zip(pieces, sizes.tolist(), strict=True)):
        input_ids[row, :size] = torch.from_numpy(piece[:-1])
        labels[row, :size] = torch.from_numpy(piece[1:])
    batch = {"input_ids": input_ids, "labels": labels}
    if (sizes < width).any():
        batch["attention_mask"] = (torch.arange(width) < sizes[:, None]).long()
    return batch
