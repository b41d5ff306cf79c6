"""The input-dependent decay of Mamba2 and Gated DeltaNet."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_RATE = 16.0
MIN_STEP, MAX_STEP = 1e-3, 0.1


class TimeStep(nn.Module):
    """`dt = softplus(x W + b)`, and a decay of `exp(-A dt)` with a learned rate `A > 0` for each head.

    At first A is spread over 1 to 16 and dt over 0.001 to 0.1, evenly in their logarithms, so that the heads start
    with memories of one to a thousand tokens (Dao & Gu, 2024; there A is spread evenly itself).

    Args:
        hidden_size: width of the input.
        num_heads: H.
    """

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(num_heads))
        self.A_log = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the rates and the bias, whose softplus is about its exponential where it is small."""
        nn.init.uniform_(self.dt_bias, math.log(MIN_STEP), math.log(MAX_STEP))
        nn.init.uniform_(self.A_log, 0.0, math.log(MAX_RATE))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return dt and the logarithm of the decay of each token of `x` `[B, T, D]`, `[B, T, H]` each."""
        logits = self.proj(x)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        step = F.softplus(logits.to(dtype) + self.dt_bias.to(dtype))
        return step, -self.A_log.to(dtype).exp() * step
