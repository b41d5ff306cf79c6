"""Watching a model read: how much each token surprised its memories, and what became of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from titans.layers.neural_memory import NeuralMemory
from titans.layers.writing import Written


class TokenTrace(NamedTuple):
    """What one token did to the memories.

    Args:
        surprise: norm of its gradient, the mean over heads and memory layers.
        written: share of the memory layers that wrote it.
        dropped: share of the layers that dropped it as an outlier.
        forgotten: share of the memory that it let decay, the mean over layers.
    """

    surprise: float
    written: float
    dropped: float
    forgotten: float


class LayerTrace(NamedTuple):
    """What the tokens of a row did to one memory layer, in reading order: `[n]` each; written and dropped are bool."""

    surprise: Tensor
    written: Tensor
    dropped: Tensor
    forgotten: Tensor


class Trace:
    """What `watch` has seen, over all calls made meanwhile with batches of the same rows.

    Args:
        layers: memory layers of the model.
    """

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._seen: list[list[tuple[LayerTrace, Tensor | None]]] = [[] for _ in range(layers)]

    def layer(self, index: int, row: int) -> LayerTrace:
        """Return what one memory layer made of a row.

        Args:
            index: the layer's number among the model's memory layers.
            row: of the batch.

        Returns:
            The row's tokens, padding left out.
        """
        none, never = torch.empty(0), torch.empty(0, dtype=torch.bool)
        empty = LayerTrace(none, never, never, none)
        parts = [
            LayerTrace(*(x[row, : None if lengths is None else lengths[row]] for x in seen))
            for seen, lengths in self._seen[index]
        ]
        return LayerTrace(*(torch.cat(x) for x in zip(*parts, strict=True))) if parts else empty

    def tokens(self, row: int) -> list[TokenTrace]:
        """Return what each token of a row did to the memories.

        Args:
            row: of the batch.

        Returns:
            One entry per token, in reading order, padding and persistent tokens left out; empty for a model without
            memory layers.
        """
        # One that saw nothing is not in use, such as the original that PEFT keeps beside its copy.
        layers = [self.layer(index, row) for index, seen in enumerate(self._seen) if seen]
        if not layers:
            return []
        means = [torch.stack([part.double() for part in parts]).mean(0) for parts in zip(*layers, strict=True)]
        return [TokenTrace(*values) for values in torch.stack(means, 1).tolist()]

    def _record(self, index: int, found: Written, lengths: Tensor | None) -> None:
        assert found.surprise is not None  # watched layers measure
        assert found.forgotten is not None
        surprise = found.surprise.detach().mean(2)
        written = torch.ones_like(surprise, dtype=torch.bool) if found.written is None else found.written
        dropped = ~written if found.dropped is None else found.dropped
        lengths = None if lengths is None else lengths.cpu()
        parts = (surprise, written, dropped, found.forgotten.detach())
        self._seen[index].append((LayerTrace(*(part.cpu() for part in parts)), lengths))


@contextlib.contextmanager
def watch(model: nn.Module) -> Iterator[Trace]:
    """Record what every token does to a model's memories.

    Meant for inference: where gradients are asked for, what is recomputed for them is recorded again.

    Args:
        model: any module with memory layers; only one may watch it at a time.

    Yields:
        The trace, which grows with each call of the model and stays when the watching ends.

    Raises:
        ValueError: the model is being watched already.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, NeuralMemory)]
    if any(layer.observer is not None for layer in layers):
        raise ValueError("the model is being watched already: end that first")
    trace = Trace(len(layers))
    for index, layer in enumerate(layers):
        layer.observer = partial(trace._record, index)
    try:
        yield trace
    finally:
        for layer in layers:
            layer.observer = None
