"""Mamba2: a state space model with one decay a head, by the same recurrence as linear attention."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titans.layers.convolution import CausalConvolution
from titans.layers.linear_recurrence import OUTPUT_EPS, LinearRecurrenceState, empty_memory
from titans.layers.mixer import Mixer, bounded, check_positive, valid
from titans.layers.registry import register_mixer
from titans.layers.time_step import TimeStep
from titans.ops.gated_delta_rule import gated_delta_rule


class Mamba2(Mixer):
    """Mamba2 (Dao & Gu, 2024, *Transformers are SSMs*, arXiv 2405.21060, section 7).

    Per head, with B and C shared by the heads (one group):

        z, u, B, C = x W_z, SiLU(conv([x W_u, x W_B, x W_C]) + bias)
        dt_t = softplus(x_t W_dt + b)
        S_t = exp(-A dt_t) S_{t-1} + B_t^T (dt_t u_t)
        y_t = C_t S_t + D u_t
        o_t = RMSNorm(y_t * SiLU(z_t)) W_O                   over all heads

    In the terms of `titans.ops.gated_delta_rule` B is the key, C the query and `dt u` the value. Inputs beyond
    ±10,000 are clipped.

    Args:
        hidden_size: width D; a multiple of `num_heads / expansion`.
        num_heads: heads H.
        state_size: channels of B and C. Default 128, as published.
        expansion: width of u over D. Default 2, as published.
        chunk_size: tokens that are treated together; changes speed only. Default 64.

    Raises:
        ValueError: a value is out of range or two do not fit together.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, *, state_size: int = 128, expansion: int = 2, chunk_size: int = 64
    ) -> None:
        super().__init__()
        check_positive(
            hidden_size=hidden_size,
            num_heads=num_heads,
            state_size=state_size,
            expansion=expansion,
            chunk_size=chunk_size,
        )
        inner = expansion * hidden_size
        if inner % num_heads:
            raise ValueError(
                f"expansion={expansion} times hidden_size={hidden_size} is not a multiple of num_heads={num_heads}"
            )
        self.hidden_size, self.num_heads, self.chunk_size = hidden_size, num_heads, chunk_size
        self.widths = [inner, state_size, state_size]  # of u, B, C
        self.in_proj = nn.Linear(hidden_size, inner + sum(self.widths), bias=False)  # z, u, B, C
        self.conv1d = CausalConvolution(sum(self.widths), bias=True)
        self.time_step = TimeStep(hidden_size, num_heads)
        self.D = nn.Parameter(torch.empty(num_heads))
        self.norm = nn.RMSNorm(inner, eps=OUTPUT_EPS)
        self.out_proj = nn.Linear(inner, hidden_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise what has no standard initialisation: the skip connection."""
        nn.init.ones_(self.D)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model, with states as large as RetNet's; see `Mixer.from_config`."""
        return super().from_config(config, **{"state_size": config.hidden_size // config.memory.num_heads, **options})

    def flops(self, context: int) -> float:
        """Count 4 for each number of the memory, to write and to read it; see `Mixer.flops`."""
        return 4 * self.widths[0] * self.widths[1]

    def empty_state(self, batch_size: int) -> LinearRecurrenceState:
        """Return the state before any token: an empty memory; see `Mixer.empty_state`."""
        shape = (self.num_heads, self.widths[1], self.widths[0] // self.num_heads)
        return empty_memory(self.norm.weight, shape, self.conv1d.initial_conv_state()).expand(batch_size)

    def mix(
        self, x: Tensor, state: LinearRecurrenceState, lengths: Tensor | None
    ) -> tuple[Tensor, LinearRecurrenceState]:
        """Write and read tokens whose padding, if any, is on the right; see `Mixer.mix`."""
        x = bounded(x)
        assert state.conv_state is not None  # checked with the state
        z, mixed = self.in_proj(x).split([self.widths[0], sum(self.widths)], -1)
        mixed, conv_state = self.conv1d(mixed, state.conv_state, lengths)
        u, b, c = F.silu(mixed).split(self.widths, -1)
        step, log_decay = self.time_step(x)
        u = u.unflatten(-1, (self.num_heads, -1))  # [B, T, H, d]
        keys, queries = (y.unsqueeze(2).expand(-1, -1, self.num_heads, -1) for y in (b, c))
        values = u * step.unsqueeze(-1)  # at least in float32, unlike u
        y, memory = gated_delta_rule(
            queries, keys, values, log_decay, None, state.memory, chunk_size=self.chunk_size, mask=valid(x, lengths)
        )
        y = (y + self.D.unsqueeze(-1) * u).flatten(2)
        out: Tensor = self.out_proj(self.norm(y * F.silu(z)))
        return out, LinearRecurrenceState(memory, conv_state)


register_mixer("mamba2", Mamba2)
