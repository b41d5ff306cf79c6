"""The feed-forward layer."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """`W_down(SiLU(W_gate x) * W_up x)` (Shazeer, 2020).

    Args:
        hidden_size: width of input and output.
        intermediate_size: width between.
    """

    component: ClassVar[str] = "feed-forward"

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token of `x` `[..., D]` by itself."""
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y
