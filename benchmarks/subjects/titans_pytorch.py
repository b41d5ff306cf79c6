"""titans-pytorch, in the setting that follows the paper's rule: `batch_size = chunk_size`, gates shared by a chunk."""

from __future__ import annotations

from typing import Any

import torch
from titans_pytorch import MemoryAsContextTransformer, MemoryMLP, NeuralMemory

from subjects.tasks import Built, parameters, passes, step


def build(task: str, **setting: Any) -> Built:
    """Build one task: what to run, and facts about it."""
    return {"layer": layer, "train": train}[task](**setting)


def layer(tokens: int, chunk: int, backward: bool, dim: int = 256, heads: int = 4) -> Built:
    """The memory layer: depth 2, expansion 2."""
    memory = NeuralMemory(
        dim, dim_head=dim // heads, heads=heads, chunk_size=chunk, batch_size=chunk,
        default_model_kwargs={"depth": 2, "expansion_factor": 2.0},
    )  # fmt: skip
    x = torch.randn(1, tokens, dim, requires_grad=backward)
    return passes(lambda: memory(x)[0], backward), {"parameters": parameters(memory)}


def train(tokens: int, segment: int, vocabulary: int = 256, dim: int = 256, layers: int = 4) -> Built:
    """A training step of its MAC language model with AdamW."""
    model = MemoryAsContextTransformer(
        num_tokens=vocabulary, dim=dim, depth=layers, segment_len=segment, dim_head=64, heads=4,
        num_persist_mem_tokens=4, num_longterm_mem_tokens=0, ff_mult=2, num_residual_streams=1,
        neural_memory_segment_len=segment, neural_memory_batch_size=segment,
        neural_memory_model=MemoryMLP(64, depth=2, expansion_factor=2.0),
        neural_memory_kwargs={"dim_head": 64, "heads": 4},
    )  # fmt: skip
    for p in model.parameters():
        p.data = p.data.clone()  # some are expanded views, which the optimizer refuses to write
    ids = torch.randint(vocabulary, (1, tokens))
    return step(model, lambda: model(ids, return_loss=True))
