"""How far the write gates of a model stand open, for a training in which writing has a price."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from titans.layers.neural_memory import NeuralMemory


class WriteGates:
    """Within its `with` block, collects the write gates of every forward pass of a model.

    A gate is the sigmoid in theta (docs/memory.md): 1 where a token writes with the largest step, near 0 where it
    hardly writes. Added to a loss, their spread is a price for writing: a token that no answer needs is then not
    written. Their mean would not do: what a memory answers is normalised, so that all gates could shrink together.

    Args:
        model: any; one without memory layers has no gates.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [layer for layer in model.modules() if isinstance(layer, NeuralMemory)]
        self._seen: defaultdict[NeuralMemory, list[Tensor]] = defaultdict(list)
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        self._handles = [layer.gates.register_forward_hook(partial(self._see, layer)) for layer in self._layers]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._seen.clear()

    def _see(self, layer: NeuralMemory, module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        self._seen[layer].append(logits[..., : layer.num_heads].float().sigmoid().flatten(0, -2))

    def take_spread(self) -> Tensor:
        """Return how evenly tokens were written since the last call, and forget what was seen.

        That is the mean of a head's gates over their root mean square (Hoyer, 2004), averaged over heads and layers:
        1 where all stand equally open, however far, and `sqrt(s)` where a share s does and the others are closed.
        Persistent tokens count like others, and so does padding. Differentiable.

        Returns:
            A number between 0 and 1; 0 where nothing was seen.
        """
        spreads = []
        for seen in self._seen.values():
            gates = torch.cat(seen)
            gates = gates / gates.detach().amax(0).clamp(min=torch.finfo(gates.dtype).tiny)  # else squares are 0
            spreads.append(gates.mean(0) / gates.square().mean(0).sqrt())
        self._seen.clear()
        return torch.cat(spreads).mean() if spreads else torch.zeros(())
