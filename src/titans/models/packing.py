"""Packed rows: several documents one after the other in a row, each read as a stream of its own.

Collators mark them by position ids that restart (`DataCollatorWithFlattening`, TRL's `packing` and `padding_free`), by
`cu_seqlens`, or by `seq_idx`. Here each document becomes a row of a padded batch, so that every mixer reads packed rows
without knowing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from titans.ops.tracing import is_concrete

CUMULATIVE = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k")


class PackedRows(NamedTuple):
    """Where the n tokens of packed rows stand, padding left out, and to which document each belongs."""

    rows: Tensor  # [n]
    columns: Tensor  # [n]
    document: Tensor  # [n], counted through all rows
    offset: Tensor  # [n], of each token in its document
    lengths: Tensor  # [documents]

    def read(self, read: Callable[[Tensor, Tensor], tuple[Tensor, ...]], hidden: Tensor) -> tuple[Tensor, ...]:
        """Read each document as a stream of its own.

        Documents of similar length share a forward pass, so that padding at most doubles the work. With several
        processes all documents share one: sharded parameters are gathered for each pass, and every process must make
        the same number of them.

        Args:
            read: reads vectors `[B, T, D]` with a mask `[B, T]`, each row a new stream; returns tensors `[B, T, D]`.
            hidden: the packed rows `[B, T, D]`.

        Returns:
            What `read` returned, back in the packed rows; 0 for padding.
        """
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        group = torch.zeros_like(self.lengths) if distributed else self.lengths.double().log2().ceil()
        outputs: list[Tensor] = []
        for size in group.unique():
            chosen = group == size
            token = chosen[self.document]
            packed = self.rows[token], self.columns[token]
            unpacked = (chosen.cumsum(0) - 1)[self.document[token]], self.offset[token]
            shape = int(chosen.sum()), int(self.lengths[chosen].max())
            mask = torch.zeros(shape, dtype=torch.bool).index_put(unpacked, torch.tensor(True))
            batch = hidden.new_zeros(*shape, hidden.shape[-1]).index_put(unpacked, hidden[packed])
            found = read(batch, mask.to(hidden.device))
            outputs = outputs or [y.new_zeros(hidden.shape) for y in found]
            outputs = [out.index_put(packed, y[unpacked]) for out, y in zip(outputs, found, strict=True)]
        return tuple(outputs)

    def mask_labels(self, labels: Tensor) -> Tensor:
        """Return labels `[B, T]` without those of documents' first tokens, which nothing in their document predicts."""
        first = self.offset == 0
        return labels.index_put((self.rows[first], self.columns[first]), labels.new_tensor(-100))


def packed_rows(
    position_ids: Tensor | None, mask: Tensor | None, shape: torch.Size, kwargs: Mapping[str, Any]
) -> PackedRows | None:
    """Find the documents of packed rows.

    Positions that rise by one from token to token are those of one document, wherever they begin, and may count padding
    or not; another document starts where they restart at 0 or at the row's first. In a compiled graph, whose shapes
    must not depend on values, positions that restart fail when it runs.

    Args:
        position_ids: `[B, T]` or `[1, T]`; None for none.
        mask: `[B, T]`, bool, False for padding; None for none.
        shape: of the tokens, `[B, T]`.
        kwargs: may hold `seq_idx` `[B, T]`, which numbers the documents, and `cu_seqlens`, `cu_seq_lens_q` or
            `cu_seq_lens_k` `[documents + 1]`, where documents start in the single row there is, and T.

    Returns:
        None where each row is one document.

    Raises:
        ValueError: wrong shapes, boundaries that do not rise from 0 to T, or positions that jump.
    """
    seq_idx, boundaries = kwargs.get("seq_idx"), {n: kwargs[n] for n in CUMULATIVE if kwargs.get(n) is not None}
    if position_ids is None and seq_idx is None and not boundaries:
        return None
    for name, x in (("position_ids", position_ids), ("seq_idx", seq_idx)):
        if x is not None and (x.dim() != 2 or x.shape[0] not in (1, shape[0]) or x.shape[1] != shape[1]):
            raise ValueError(f"{name} has shape {tuple(x.shape)}: expected {list(shape)}")
    if position_ids is not None and not is_concrete(position_ids):
        _assert_rising(position_ids, mask)
        return None
    rows, columns = (torch.ones(shape) if mask is None else mask.cpu()).nonzero(as_tuple=True)
    new_row = torch.ones_like(rows, dtype=torch.bool)
    new_row[1:] = rows.diff() > 0
    starts = new_row.clone()
    for name, where in boundaries.items():
        starts |= _boundaries(name, where, shape)[columns]
    if seq_idx is not None:
        starts[1:] |= seq_idx.cpu().expand(shape)[rows, columns].diff() != 0
    if position_ids is not None:
        starts |= _restarts(position_ids.cpu().expand(shape)[rows, columns], columns, new_row)
    if torch.equal(starts, new_row):
        return None
    document = starts.cumsum(0) - 1
    lengths = document.bincount()
    offset = torch.arange(len(document)) - (lengths.cumsum(0) - lengths)[document]
    return PackedRows(rows, columns, document, offset, lengths)


def _boundaries(name: str, where: Any, shape: torch.Size) -> Tensor:
    """Return which columns `[T]` start a document."""
    where = torch.as_tensor(where).cpu().long()
    right = shape[0] == 1 and where.dim() == 1 and len(where) > 1 and where[0] == 0 and where[-1] == shape[1]
    if not right or bool((where.diff() <= 0).any()):
        raise ValueError(f"{name} must rise from 0 to the {shape[1]} tokens of a single row, a step for each document")
    return torch.zeros(shape[1], dtype=torch.bool).index_fill(0, where[:-1], True)


def _restarts(positions: Tensor, columns: Tensor, new_row: Tensor) -> Tensor:
    """Return which tokens `[n]` have a position `[n]` that restarts."""
    step, room = positions.diff(prepend=positions[:1]), columns.diff(prepend=columns[:1])
    first = positions[new_row][new_row.cumsum(0) - 1]  # of each token's row
    follows = (step >= 1) & (step <= room)
    restarts = (step <= 0) & ((positions == 0) | (positions == first))
    if not bool((new_row | follows | restarts).all()):
        raise ValueError(
            "position_ids must rise by one from token to token, and restart where a document starts: at 0 or at the "
            "row's first"
        )
    return restarts & ~new_row


def _assert_rising(positions: Tensor, mask: Tensor | None) -> None:
    """In a compiled graph, refuse positions that restart when it runs."""
    if torch.compiler.is_compiling():
        rising = positions.diff() >= 1
        if mask is not None:
            rising = rising | ~(mask[:, 1:] & mask[:, :-1])
        torch._assert_async(rising.all(), "position_ids restart: a compiled graph reads one document in each row")
