"""One chunk of the parallel form: the errors of its keys, reads, and what it writes (docs/semantics.md, section 2)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from titans.ops.associative_memory.network import Network
from titans.ops.associative_memory.recurrence import Coefficients
from titans.ops.associative_memory.state import AssociativeMemoryState
from titans.ops.chunk_alignment import renew


class ChunkState(NamedTuple):
    """What one chunk hands to the next: L tensors `[B, H, d_in, d_out]` each."""

    weights: list[Tensor]
    surprise: list[Tensor]
    anchor: list[Tensor]

    def state(self, rule: str, offset: int | Tensor, end: int | Tensor) -> AssociativeMemoryState:
        """Return the state after a call; under the token rule a place in a chunk means nothing, and none is counted.

        Args:
            rule: "chunk" or "token".
            offset: of the state before.
            end: tokens read of the last chunk.
        """
        if rule == "token":
            return AssociativeMemoryState(self.weights, self.surprise, self.weights, offset)
        return AssociativeMemoryState(self.weights, self.surprise, self.anchor, end)


def errors(network: Network, k: Tensor, v: Tensor, memory: ChunkState) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Forward and backward of the keys through the anchor: each layer's inputs and errors, and the last product."""
    inputs, products = [k], [k @ memory.anchor[0]]
    for w in memory.anchor[1:]:
        inputs.append(network.sigma(products[-1]))
        products.append(inputs[-1] @ w)
    error = network.head(k, products[-1]) - v
    deltas = [network.head_backward(products[-1], 2 * error)]
    for w, z in zip(memory.anchor[:0:-1], products[-2::-1], strict=True):
        deltas.append(network.sigma.backward(deltas[-1] @ w.mT, z))
    return inputs, deltas[::-1], products[-1]


def limited(network: Network, z: Tensor, deltas: list[Tensor], square: Tensor) -> list[Tensor]:
    """Shorten errors by `Network.step_limit`, given the last product and the squared norm of each gradient."""
    limit = network.step_limit(z, deltas[-1], square)
    return [limit * delta for delta in deltas]


def read(
    network: Network, q: Tensor, inputs: list[Tensor], deltas: list[Tensor], c: Coefficients, memory: ChunkState
) -> Tensor:
    """Read each query at the memory as of its own token."""
    z = q
    for i, (w, s, a, delta) in enumerate(zip(memory.weights, memory.surprise, inputs, deltas, strict=True)):
        x = network.sigma(z) if i else q
        here = c.channels(w.shape[-1])
        z = here.weights * (x @ w) + here.surprise * (x @ s) - here.mix(x @ a.mT, delta)
    return network.head(q, z)


def write(
    inputs: list[Tensor], deltas: list[Tensor], c: Coefficients, memory: ChunkState, end: bool | Tensor
) -> ChunkState:
    """Carry weights and surprise over the chunk; rows that end it take a new anchor."""
    weights, surprise = [], []
    for w, s, a, delta in zip(memory.weights, memory.surprise, inputs, deltas, strict=True):
        here = c.channels(w.shape[-1])
        reached = here.gradient[..., -1, :].mT * delta  # [B, H, b, d]
        weights.append(here.weights[..., -1:, :] * w + here.surprise[..., -1:, :] * s - a.mT @ reached)
        surprise.append(c.memory * s - a.mT @ (c.momentum * delta))
    return ChunkState(weights, surprise, renew(memory.anchor, weights, end))
