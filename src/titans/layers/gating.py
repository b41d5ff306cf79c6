"""The gate by which the memory's output passes or holds back the attention's, in MAC and MAG."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MemoryGate(nn.Module):
    """`attention_norm(y) * sigmoid(memory_norm(m))`, both norms with learnable scales (semantics, section 5).

    The caller applies `attention_norm` itself, because MAC writes the normalised y into the memory before it gates.

    Args:
        dim: width of both inputs.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim, eps=1e-6)
        self.memory_norm = nn.RMSNorm(dim, eps=1e-6)

    def forward(self, y: Tensor, m: Tensor) -> Tensor:
        """Gate `y`, the attention's output after `attention_norm`, by the memory's output `m`, both `[B, N, dim]`."""
        gated: Tensor = y * torch.sigmoid(self.memory_norm(m))
        return gated
