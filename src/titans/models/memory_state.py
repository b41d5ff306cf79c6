"""The state of a whole model: what `generate` and users carry from call to call."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from titans.models.provenance import Provenance
from titans.models.segment_recurrence import SegmentState
from titans.ops.state import State


class MemoryState(State, frozen=False):  # not frozen, because `generate` marks the caches it is given
    """Everything a model holds between tokens; its size does not depend on how many it has read.

    The exception is full attention: the state of the variant "transformer" grows with each token, and that of "rmt" up
    to the end of each segment.

    Args:
        layers: the states of each block's mixers.
        tokens: positions read so far, padding included.
        provenance: the model that made the state; None where that is not known, as after pickling.
        segment: what RMT carries from segment to segment; None in other models.
    """

    layers: list[list[Any]]
    tokens: int
    provenance: Provenance | None = None
    segment: SegmentState | None = None

    is_compileable = False
    is_croppable = False
    # What `generate` notes on the states that it hands out; no part of the value, and lost when that is changed.
    text = cast("Tensor | None", None)  # all ids that were read, `[B, tokens]`; None where they are not known
    of_beams = False  # the rows are those of a beam search

    @property
    def is_linear(self) -> list[bool]:
        """Tell `generate` that prompts hold new tokens only: what was read is not passed again."""
        return [True] * len(self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions read so far (Hugging Face's name for it)."""
        return self.tokens

    def crop(self, max_length: int) -> NoReturn:
        """Refuse: a memory cannot take tokens back.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "a memory state cannot be cropped, since a memory cannot take tokens back: keep an earlier state"
        )

    def for_rows(self, batch_size: int, layers: int) -> MemoryState:
        """Fit the state to a batch: each row is repeated where a batch holds several continuations of it (beams).

        Args:
            batch_size: rows wanted.
            layers: blocks of the model.

        Returns:
            This state, or one with each row repeated.

        Raises:
            ValueError: the state is of a model of another depth, or the rows do not divide.
        """
        if len(self.layers) != layers:
            raise ValueError(
                f"the state comes from another configuration: it has {len(self.layers)} blocks and this model {layers}"
            )
        rows = next((x.shape[0] for x in self.tensors()), batch_size)  # without mixers there is no state
        if rows == batch_size:
            return self
        if batch_size % rows:
            raise ValueError(
                f"the state holds {rows} rows and the batch {batch_size}: select the state's rows first, or, after "
                "beam search, which leaves those of its last beams, read the text that it returned"
            )
        return self.select(torch.arange(rows).repeat_interleave(batch_size // rows))
