"""titans-memory: one head of full width, gradients of a chunk through autograd; not the same rule, but the same use."""

from __future__ import annotations

import torch

from subjects.tasks import Built, parameters, passes
from titans import NeuralMemory


def build(task: str, tokens: int, chunk: int, backward: bool, dim: int = 256, heads: int = 1) -> Built:
    """Build the memory layer, its only task here: depth 2, expansion 2."""
    assert (task, heads) == ("layer", 1)
    memory = NeuralMemory(d_model=dim, d_hidden=2 * dim, n_layers=2, chunk_size=chunk)
    x = torch.randn(1, tokens, dim, requires_grad=backward)
    run = passes(lambda: memory(x), True) if backward else lambda: memory(x)  # it needs autograd also to read
    return run, {"parameters": parameters(memory)}
