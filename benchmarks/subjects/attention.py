"""Exact attention: what memory is compared with as sequences grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from subjects.tasks import Built, passes
from titans.layers.sliding_window_attention import SlidingWindowAttention


def build(task: str, **setting: Any) -> Built:
    """Build one task: what to run, and facts about it."""
    return {"full": full, "sliding": sliding, "generate": generate}[task](**setting)


class FullAttention(nn.Module):
    """Causal attention to everything before, by PyTorch's fused kernel."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.output = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, `[B, N, D]` to the same."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y: torch.Tensor = self.output(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        return y


def full(tokens: int, dim: int = 256, heads: int = 4) -> Built:
    """Forward and backward of full attention."""
    return _both(FullAttention(dim, heads), tokens, dim)


def sliding(tokens: int, dim: int = 256, heads: int = 4, window: int = 512) -> Built:
    """Forward and backward of sliding-window attention."""
    layer = SlidingWindowAttention(dim, heads, window)
    return _both(lambda x: layer(x)[0], tokens, dim)


def _both(layer: Callable[[torch.Tensor], torch.Tensor], tokens: int, dim: int) -> Built:
    x = torch.randn(1, tokens, dim, requires_grad=True)
    return passes(lambda: layer(x), backward=True), {}


def generate(context: int, count: int = 16) -> Built:
    """Generate after a context with a key-value cache: a Llama of four layers of width 256.

    The context's keys and values are drawn at random instead of computed, which changes no time.
    """
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4,
            max_position_embeddings=context + count,
        )
    ).eval()  # fmt: skip
    filled = [tuple(torch.randn(2, 1, 4, context, 64)) for _ in range(4)]

    @torch.no_grad()
    def run() -> None:
        cache, token = DynamicCache(filled), torch.zeros(1, 1, dtype=torch.long)
        for _ in range(count):
            token = model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)

    return run, {"tokens": count, "state": 4 * 2 * 4 * context * 64 * 4}
