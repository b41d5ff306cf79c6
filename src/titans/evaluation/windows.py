"""Predicting documents with models that read no more than a window: those of Hugging Face."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from titans.error_text import refused_as
from titans.errors import TitansError


class DocumentWindows:
    """How a causal language model of Hugging Face reads a document: whole, or in windows that overlap by half.

    A document of up to one window is read whole. Of a longer one, windows are read, each from its own start and half a
    window after the one before; each predicts what no window before it did, so that every token is predicted once, and
    those after the first window with half a window before them at least.

    Args:
        model: the model, in evaluation mode.
        piece_length: tokens of one forward pass, where the model takes a key-value cache from one to the next. Others,
            as those with a recurrent state (Mamba), read a window in one.
        size: tokens of a window. Default: as many as the model has positions for; a model without a limit reads every
            document whole.

    Attributes:
        size: tokens of a window; None where every document is one.

    Raises:
        TitansError: the window is longer than the model's positions, or shorter than 2 tokens.
    """

    def __init__(self, model: Any, piece_length: int, size: int | None = None) -> None:
        longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if size is not None and size < 2:
            raise TitansError(f"the window is {size} tokens, expected at least 2")
        if size is not None and longest is not None and size > longest:
            raise TitansError(f"the window is {size:,} tokens, but the model has positions for {longest:,}")
        self.model, self.size = model, size or longest
        cached = "cache" in inspect.signature(model.forward).parameters and not getattr(model, "_is_stateful", False)
        self._piece_length = piece_length if cached else None

    @property
    def length(self) -> int:
        """Token ids of a window, with the one that is only predicted."""
        return sys.maxsize if self.size is None else self.size + 1

    @property
    def overlap(self) -> int:
        """Token ids that a window has in common with the one before."""
        return 1 if self.size is None else self.length - self.stride

    @property
    def stride(self) -> int:
        """Tokens from the start of one window to that of the next."""
        return (self.length - 1) // 2

    @property
    def protocol(self) -> str:
        """What is done, in words."""
        if self.size is None:
            return "each document read whole"
        return (
            f"documents of up to {self.size:,} tokens read whole, longer ones in windows of {self.size:,}, each read "
            f"from its start and {self.stride:,} after the one before"
        )

    def losses(self, windows: Iterable[Sequence[int]]) -> Iterator[tuple[int, list[float]]]:
        """Predict one document.

        Args:
            windows: its token ids, cut into windows; the last id of each is only predicted.

        Yields:
            How many tokens lie before the first of some consecutive ones that were predicted, and their losses.
        """
        start, done = 0, 0  # of the window, and tokens predicted
        for ids in windows:
            for first, found in self._window(ids, done - start):
                yield start + first + 1, found
            done = start + len(ids) - 1
            start += self.stride

    def _window(self, ids: Sequence[int], skipped: int) -> Iterator[tuple[int, list[float]]]:
        """Read a window, and give the losses but for the first ones, which have been given."""
        tokens = torch.tensor(ids, device=self.model.device)
        inputs, targets = tokens[None, :-1], tokens[1:]
        length = self._piece_length or len(targets)
        state: Any = None
        for first in range(0, len(targets), length):
            more: dict[str, Any] = {} if length >= len(targets) else {"cache": state, "use_cache": True}
            with refused_as("the model cannot read the text"), torch.inference_mode():
                outputs = self.model(inputs[:, first : first + length], **more)
                logits = outputs.logits[0].float()
            state = getattr(outputs, "cache", None)
            known = max(0, skipped - first)  # of this piece
            if known < len(logits):
                wanted = targets[first + known : first + length]
                yield first + known, F.cross_entropy(logits[known:], wanted, reduction="none").tolist()
