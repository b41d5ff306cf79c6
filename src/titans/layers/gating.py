"""The gate by which the memory's output passes or holds back the attention's, in MAC and MAG."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

INITIAL_SCALE = 0.2  # of the attention's output: at 1 what the memory answers goes unheard (docs/lab-notes/design.md)


class MemoryGate(nn.Module):
    """`(scale * norm(y) + shift) * sigmoid(norm(m))`, with learnable vectors (docs/semantics.md, section 5).

    The shift lets the memory through where attention has nothing to say. It starts at 1, the scale at 0.2. The caller
    applies `attention_norm` itself, because MAC writes the normalised y into the memory before it gates.

    Args:
        hidden_size: width of both inputs.
        shifted: off: the paper's `scale * norm(y) * sigmoid(norm(m))`, the scale starting at 1. Default True.
    """

    component: ClassVar[str] = "norms and gates"

    def __init__(self, hidden_size: int, shifted: bool = True) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden_size, eps=1e-6, elementwise_affine=False)
        self.memory_norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.scale = nn.Parameter(torch.empty(hidden_size))
        self.shift = nn.Parameter(torch.empty(hidden_size)) if shifted else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the vectors that belong to no norm."""
        nn.init.constant_(self.scale, 1.0 if self.shift is None else INITIAL_SCALE)
        if self.shift is not None:
            nn.init.ones_(self.shift)

    def forward(self, y: Tensor, m: Tensor) -> Tensor:
        """Gate `y`, the attention's output after `attention_norm`, by the memory's output `m`, both `[B, T, D]`."""
        y = self.scale * y if self.shift is None else torch.addcmul(self.shift, self.scale, y)
        gated: Tensor = y * torch.sigmoid(self.memory_norm(m))
        return gated
