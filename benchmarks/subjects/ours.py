"""This project."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F

from subjects.tasks import Built, parameters, passes, step
from titans import NeuralMemory, TitansConfig, TitansForCausalLM
from titans.ops import associative_memory, initial_state


def build(task: str, **setting: Any) -> Built:
    """Build one task: what to run, and facts about it."""
    return {"layer": layer, "op": op, "reference": reference, "sgemm": sgemm, "train": train, "generate": generate}[
        task
    ](**setting)


def layer(tokens: int, chunk: int, backward: bool, dim: int = 256, heads: int = 4) -> Built:
    """The memory layer of contest 1: depth 2, expansion 2, by the rule that the others have."""
    memory = NeuralMemory(dim, heads, rule="chunk", depth=2, expansion=2, chunk_size=chunk)
    x = torch.randn(1, tokens, dim, requires_grad=backward)
    return passes(lambda: memory(x)[0], backward), {"parameters": parameters(memory)}


def op(tokens: int, chunk: int, dim: int = 256, heads: int = 4) -> Built:
    """Forward and backward of the op alone: what the memory itself adds to q, k, v, y and their gradients."""
    memory = NeuralMemory(dim, heads, rule="chunk", depth=2, expansion=2, chunk_size=chunk)
    q, k, v = (torch.randn(1, tokens, heads, dim // heads, requires_grad=True) for _ in range(3))
    theta, alpha, eta = (torch.full((1, tokens, heads), x) for x in (0.2 / chunk, 0.001, 0.5))
    state = memory.initial_state(1).memory

    def run() -> None:
        y, _ = associative_memory(
            q, F.normalize(k, dim=-1), v, theta, alpha, eta, state, **memory.options, **memory.network_options,
            norm_weight=memory.memory_norm,
        )  # fmt: skip
        y.sum().backward()
        q.grad = k.grad = v.grad = None

    return run, {"bytes of q, k, v, y and their gradients": 8 * 4 * dim * tokens}


def reference(tokens: int, chunk: int, rule: str) -> Built:
    """How far the fast op is from the token-by-token one: outputs, state and gradients, relative, in float64."""
    depth, norm = (1, None) if rule == "token" else (2, torch.rand(64, dtype=torch.float64) + 0.5)
    widths = [64] + [128] * (depth - 1) + [64]
    weights = [torch.randn(4, i, o, dtype=torch.float64) * i**-0.5 for i, o in itertools.pairwise(widths)]
    q, k, v = torch.randn(3, 1, tokens, 4, 64, dtype=torch.float64)
    theta, alpha, eta = torch.rand(3, 1, tokens, 4, dtype=torch.float64)
    inputs = [q, F.normalize(k, dim=-1), v, 0.5 / chunk * theta, 0.05 * alpha, 0.9 * eta]
    found = []
    for backend in (None, "naive"):
        leaves = [x.clone().requires_grad_() for x in (*inputs, *weights)]
        y, state = associative_memory(
            *leaves[:6], initial_state(leaves[6:]), chunk_size=chunk, rule=rule, residual=rule == "chunk",
            norm_weight=norm, limit_steps=rule == "chunk", backend=backend,
        )  # fmt: skip
        gradients = torch.autograd.grad(y.square().sum() + sum(w.sum() for w in state.weights), leaves)
        found.append([y, *state.weights, *state.surprise, *gradients])
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True))
    return lambda: None, {"error": error}


def sgemm(size: int) -> Built:
    """A large matrix product in float32, for the rate of the machine."""
    a, b = torch.randn(2, size, size)
    return lambda: a @ b, {"flops": 2 * size**3}


def train(tokens: int, segment: int, vocabulary: int = 256, dim: int = 256, layers: int = 4) -> Built:
    """A training step of a MAC language model with AdamW (contest 4)."""
    model = TitansForCausalLM(
        TitansConfig(
            variant="mac", vocab_size=vocabulary, hidden_size=dim, num_hidden_layers=layers, num_attention_heads=4,
            segment_length=segment, memory={"rule": "chunk", "chunk_size": segment, "expansion": 2},
            num_persistent_tokens=4,
        )
    ).train()  # fmt: skip
    ids = torch.randint(vocabulary, (1, tokens))
    return step(model, lambda: model(ids, labels=ids).loss)


def generate(variant: str, context: int, count: int = 16) -> Built:
    """Generate `count` tokens after a context, which is read before the clock runs (contest 5)."""
    model = TitansForCausalLM(
        TitansConfig(
            variant=variant, vocab_size=256, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
            segment_length=64, sliding_window=64, num_persistent_tokens=4, memory={"expansion": 2},
        )
    ).eval()  # fmt: skip
    ids, cache = torch.randint(256, (1, context)), None
    with torch.no_grad():
        for piece in ids.split(4096, 1):
            cache = model(piece, cache=cache, use_cache=True).cache

    @torch.no_grad()
    def run() -> None:
        token, state = ids[:, -1:], cache
        for _ in range(count):
            output = model(token, cache=state, use_cache=True)
            token, state = output.logits[:, -1:].argmax(-1), output.cache

    return run, {"tokens": count, "state": cache.nbytes}
