"""Mamba: a state space model with a time step of its own for each channel."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titans.layers.convolution import CausalConvolution
from titans.layers.mixer import Mixer, bounded, check_positive, valid
from titans.layers.registry import register_mixer
from titans.layers.time_step import MAX_STEP, MIN_STEP
from titans.ops.selective_scan import SelectiveScanState, selective_scan
from titans.ops.state import State


class SelectiveStateSpaceState(State):
    """State of `Mamba`.

    Args:
        memory: the state space model's own.
        conv_state: last inputs of the short convolution, `[B, 3, C]`.
    """

    memory: SelectiveScanState
    conv_state: Tensor


class Mamba(Mixer):
    """Mamba (Gu & Dao, 2023, arXiv 2312.00752, section 3.4).

    Per channel, with B and C shared by the channels:

        u, z = SiLU(conv(x W_u) + bias), x W_z
        r, B, C = u W_r, u W_B, u W_C
        dt_t = softplus(r_t W_dt + b)
        h_t = exp(-A dt_t) h_{t-1} + dt_t u_t B_t            S numbers with a rate A each
        y_t = C_t . h_t + D u_t
        o_t = (y_t * SiLU(z_t)) W_O

    A is `1, 2, ..., S` times a learned factor. Inputs beyond ±10,000 are clipped.

    Args:
        hidden_size: width D.
        state_size: numbers S of state for each channel. Default 16, as published.
        expansion: width of u over D. Default 2, as published.
        rank: width of r. Default: `D / 16`, rounded up, as published.
        chunk_size: tokens that are stepped through one after the other; changes speed only. Default 16.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        state_size: int = 16,
        expansion: int = 2,
        rank: int | None = None,
        chunk_size: int = 16,
    ) -> None:
        super().__init__()
        rank = -(-hidden_size // 16) if rank is None else rank
        check_positive(
            hidden_size=hidden_size, state_size=state_size, expansion=expansion, rank=rank, chunk_size=chunk_size
        )
        inner = expansion * hidden_size
        self.hidden_size, self.chunk_size = hidden_size, chunk_size
        self.widths = [rank, state_size, state_size]  # of r, B, C
        self.in_proj = nn.Linear(hidden_size, 2 * inner, bias=False)  # u, z
        self.conv1d = CausalConvolution(inner, bias=True)
        self.x_proj = nn.Linear(inner, sum(self.widths), bias=False)  # r, B, C
        self.dt_weight = nn.Parameter(torch.empty(inner, rank))
        self.dt_bias = nn.Parameter(torch.empty(inner))
        self.A_log = nn.Parameter(torch.empty(inner, state_size))  # of the learned factor
        self.D = nn.Parameter(torch.empty(inner))
        self.out_proj = nn.Linear(inner, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the time steps to about 0.001 to 0.1, the rates to 1, 2, ..., S, and the skip connection."""
        bound = self.widths[0] ** -0.5
        nn.init.uniform_(self.dt_weight, -bound, bound)
        nn.init.uniform_(self.dt_bias, math.log(MIN_STEP), math.log(MAX_STEP))
        nn.init.zeros_(self.A_log)
        nn.init.ones_(self.D)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model, with its own sizes as published; see `Mixer.from_config`."""
        return cls(config.hidden_size, **options)

    def flops(self, context: int) -> float:
        """Count 6 for each number of the state, with its decay, and the product that makes dt; see `Mixer.flops`."""
        return 6 * self.A_log.numel() + 2 * self.dt_weight.numel()

    def empty_state(self, batch_size: int) -> SelectiveStateSpaceState:
        """Return the state before any token: zeros; see `Mixer.empty_state`."""
        dtype = torch.promote_types(self.A_log.dtype, torch.float32)
        vector = torch.zeros(1, *self.A_log.shape, dtype=dtype, device=self.A_log.device)
        state = SelectiveStateSpaceState(SelectiveScanState(vector), self.conv1d.initial_conv_state())
        return state.expand(batch_size)

    def mix(
        self, x: Tensor, state: SelectiveStateSpaceState, lengths: Tensor | None
    ) -> tuple[Tensor, SelectiveStateSpaceState]:
        """Write and read tokens whose padding, if any, is on the right; see `Mixer.mix`."""
        u, z = self.in_proj(bounded(x)).chunk(2, -1)
        u, conv_state = self.conv1d(u, state.conv_state, lengths)
        u = F.silu(u)
        r, b, c = self.x_proj(u).split(self.widths, -1)
        logits = F.linear(r, self.dt_weight)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        step = F.softplus(logits.to(dtype) + self.dt_bias.to(dtype))
        y, memory = selective_scan(
            u, step, self._rate(dtype), b, c, state.memory, chunk_size=self.chunk_size, mask=valid(x, lengths)
        )
        out: Tensor = self.out_proj((y + self.D * u) * F.silu(z))
        return out, SelectiveStateSpaceState(memory, conv_state)

    def _rate(self, dtype: torch.dtype) -> Tensor:
        """Return A, `[D, S]`."""
        first = torch.arange(1, self.A_log.shape[1] + 1, device=self.A_log.device, dtype=dtype)
        return first * self.A_log.to(dtype).exp()


register_mixer("mamba", Mamba)
