"""The feed-forward layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """`W_down(SiLU(W_gate x) * W_up x)` (Shazeer, 2020).

    Args:
        dim: width of input and output.
        hidden: width between.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token of `x` `[..., dim]` by itself."""
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y
