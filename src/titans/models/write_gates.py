"""How far the write gates of a model stand open, for a training in which writing has a price."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from titans.layers.neural_memory import NeuralMemory


class WriteGates:
    """Within its `with` block, collects the write gates of every forward pass of a model.

    A gate is the sigmoid in theta (docs/memory.md): 1 where a token writes with the largest step, near 0 where it
    hardly writes. Added to a loss, their mean is a price for writing: a token that no answer needs is then not written.

    Args:
        model: any; one without memory layers has no gates.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [layer for layer in model.modules() if isinstance(layer, NeuralMemory)]
        self._seen: list[Tensor] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        self._handles = [layer.gates.register_forward_hook(partial(self._see, layer.heads)) for layer in self._layers]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._seen = [], []

    def _see(self, heads: int, module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        self._seen.append(logits[..., :heads].float().sigmoid())

    def take_mean(self) -> Tensor:
        """Return the mean gate over tokens, heads and layers since the last call, and forget what was seen.

        Persistent tokens count like others, and so does padding. Differentiable.

        Returns:
            A number between 0 and 1; 0 where nothing was seen.
        """
        seen, self._seen = self._seen, []
        if not seen:
            return torch.zeros(())
        return torch.cat([gates.flatten() for gates in seen]).mean()
