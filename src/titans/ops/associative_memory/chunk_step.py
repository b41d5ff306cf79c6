"""One chunk of the parallel form: the errors of its keys, reads, and what it writes (docs/semantics.md, section 2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
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

    def state(self, anchored: bool, offset: int | Tensor, end: int | Tensor) -> AssociativeMemoryState:
        """Return the state after a call; where no gradient needs an anchor, the place in a chunk is not counted.

        Args:
            anchored: of the options.
            offset: of the state before.
            end: tokens read of the last chunk.
        """
        if not anchored:
            return AssociativeMemoryState(self.weights, self.surprise, self.weights, offset)
        return AssociativeMemoryState(self.weights, self.surprise, self.anchor, end)


def errors(network: Network, k: Tensor, v: Tensor, memory: ChunkState) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Forward and backward of the keys through the anchor: each layer's inputs and errors, and the last product."""
    inputs, products = hidden(network, k, memory.anchor)
    z = inputs[-1] @ memory.anchor[-1]
    delta = network.head_backward(z, 2 * (network.head(k, z) - v))
    return inputs, carried_back(network, products, delta, memory.anchor), z


def token_errors(
    network: Network, k: Tensor, v: Tensor, memory: ChunkState, c: Coefficients
) -> tuple[list[Tensor], list[Tensor]]:
    """Each layer's inputs and errors under the token rule: one unit lower-triangular solve.

    The last layer's errors are read at each token's own weights, before the decay. With the inputs of that layer
    `f`, made by the anchor of the layers below:

        e_t = A_{t-1} f_t W + B_{t-1} f_t S - v_t - sum_{i < t} C[t-1, i] (f_t . f_i) 2 e_i
    """
    inputs, products = hidden(network, k, memory.anchor)
    f = inputs[-1]
    c = c.channels(v.shape[-1])
    before = [torch.cat([torch.full_like(x[..., :1, :], first), x[..., :-1, :]], -2)
              for x, first in ((c.weights, 1.0), (c.surprise, 0.0), (c.gradient, 0.0))]  # fmt: skip
    target = v - k if network.residual else v
    right = before[0] * (f @ memory.weights[-1]) + before[1] * (f @ memory.surprise[-1]) - target
    system = 2 * before[2] * (f @ f.mT).unsqueeze(-3)  # [B, H, c, b, b], strictly lower triangular
    if system.shape[-3] == 1:
        error = torch.linalg.solve_triangular(system.squeeze(-3), right, upper=False, unitriangular=True)
    else:
        right = right.mT.unsqueeze(-1)  # a system of its own for each channel
        error = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True).squeeze(-1).mT
    return inputs, carried_back(network, products, 2 * error, memory.anchor)


def hidden(network: Network, k: Tensor, weights: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Carry keys through the layers below the last: each layer's inputs, and the products between them."""
    inputs, products = [k], []
    for w in weights[:-1]:
        products.append(inputs[-1] @ w)
        inputs.append(network.features(products[-1]))
    return inputs, products


def carried_back(network: Network, products: list[Tensor], delta: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Carry the gradient at the last product back: each layer's, first to last."""
    deltas = [delta]
    for w, z in zip(weights[:0:-1], products[::-1], strict=True):
        deltas.append(network.features_backward(z, deltas[-1] @ w.mT))
    return deltas[::-1]


def limited(network: Network, z: Tensor, deltas: list[Tensor], square: Tensor) -> list[Tensor]:
    """Shorten errors by `Network.step_limit`, given the last product and the squared norm of each gradient."""
    limit = network.step_limit(z, deltas[-1], square)
    return [limit * delta for delta in deltas]


def slowed(deltas: list[Tensor], hidden_lr: float) -> list[Tensor]:
    """Shorten the errors of the layers below the last."""
    return deltas if hidden_lr == 1 else [*(hidden_lr * delta for delta in deltas[:-1]), deltas[-1]]


def read(
    network: Network, q: Tensor, inputs: list[Tensor], deltas: list[Tensor], c: Coefficients, memory: ChunkState
) -> Tensor:
    """Read each query at the memory as of its own token."""
    z = q
    for i, (w, s, a, delta) in enumerate(zip(memory.weights, memory.surprise, inputs, deltas, strict=True)):
        x = network.features(z) if i else q
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
