"""What the mixers over `titans.ops.gated_delta_rule` have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titans.layers.convolution import CausalConvolution
from titans.layers.mixer import Mixer, bounded, check_positive, valid
from titans.ops.gated_delta_rule import GatedDeltaRuleState, gated_delta_rule
from titans.ops.gated_rms_norm import gated_rms_norm
from titans.ops.state import State

OUTPUT_EPS = 1e-6


class LinearRecurrenceState(State):
    """State of the mixers over `titans.ops.gated_delta_rule`.

    Args:
        memory: the memory of each head.
        conv_state: last inputs of the short convolutions, `[B, 3, C]`; None without.
    """

    memory: GatedDeltaRuleState
    conv_state: Tensor | None


class LinearRecurrence(Mixer):
    """A matrix memory per head, `S_t = decay(S_{t-1}) + write`, read by `q_t S_t`.

    Queries, keys and values are linear in x, queries divided by `sqrt(d_k)`; or, with `qk_l2norm`, `SiLU(conv(x W))`
    with queries and keys of unit length per head. What is read is normalised per head, gated by `SiLU(x W)` where there
    is a gate, and projected. Subclasses say how the memory decays and is written: `gates`. Inputs beyond ±10,000 are
    clipped.

    Args:
        hidden_size: width D of the input and the output.
        num_heads: memory heads H.
        head_k_dim: d_k, channels of a head's queries and keys.
        head_v_dim: d_v, channels of a head's values.
        qk_l2norm: the second form of queries, keys and values.
        use_short_conv: short convolutions on all three.
        gate: gate what is read.
        chunk_size: tokens that are treated together; changes speed only.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        *,
        qk_l2norm: bool,
        use_short_conv: bool,
        gate: bool,
        chunk_size: int,
    ) -> None:
        super().__init__()
        check_positive(
            hidden_size=hidden_size,
            num_heads=num_heads,
            head_k_dim=head_k_dim,
            head_v_dim=head_v_dim,
            chunk_size=chunk_size,
        )
        self.hidden_size, self.num_heads = hidden_size, num_heads
        self.qk_l2norm, self.chunk_size = qk_l2norm, chunk_size
        self.widths = [num_heads * width for width in (head_k_dim, head_k_dim, head_v_dim)]  # of q, k, v
        self.qkv_proj = nn.Linear(hidden_size, sum(self.widths), bias=False)
        self.conv1d = CausalConvolution(sum(self.widths)) if use_short_conv else None
        self.o_norm = nn.RMSNorm(head_v_dim, eps=OUTPUT_EPS)
        self.g_proj = nn.Linear(hidden_size, num_heads * head_v_dim, bias=False) if gate else None
        self.o_proj = nn.Linear(num_heads * head_v_dim, hidden_size, bias=False)

    delta_rule: ClassVar[bool] = False

    @abstractmethod
    def gates(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Tell how the memory decays and is written; both at least in float32.

        Args:
            x: tokens `[B, T, D]`, bounded.

        Returns:
            `(log_decay, beta)` as of `titans.ops.gated_delta_rule`: `[B, T, H]` or, for a decay of each key channel,
            `[B, T, H, d_k]`; None for no decay, and for no delta rule.
        """

    def flops(self, context: int) -> float:
        """Count 4 for each number of the memory, to write and to read it, and 2 more for the delta rule."""
        matrix = self.widths[1] * self.widths[2] // self.num_heads
        return (6 if self.delta_rule else 4) * matrix

    def empty_state(self, batch_size: int) -> LinearRecurrenceState:
        """Return the state before any token: an empty memory; see `Mixer.empty_state`."""
        widths = [width // self.num_heads for width in self.widths[1:]]
        conv_state = None if self.conv1d is None else self.conv1d.initial_conv_state()
        return empty_memory(self.o_norm.weight, (self.num_heads, *widths), conv_state).expand(batch_size)

    def mix(
        self, x: Tensor, state: LinearRecurrenceState, lengths: Tensor | None
    ) -> tuple[Tensor, LinearRecurrenceState]:
        """Write and read tokens whose padding, if any, is on the right; see `Mixer.mix`."""
        x = bounded(x)
        (q, k, v), conv_state = self._project(x, state.conv_state, lengths)
        log_decay, beta = self.gates(x)
        y, memory = gated_delta_rule(
            q, k, v, log_decay, beta, state.memory, chunk_size=self.chunk_size, mask=valid(x, lengths)
        )
        out: Tensor = self.o_proj(self.norm_and_gate(y, x))
        return out, LinearRecurrenceState(memory, conv_state)

    def _project(
        self, x: Tensor, conv_state: Tensor | None, lengths: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """Return queries, keys and values, `[B, T, H, d]` each, and the convolution's inputs to carry."""
        z = self.qkv_proj(x)
        if self.conv1d is not None:
            assert conv_state is not None  # checked with the state
            z, conv_state = self.conv1d(z, conv_state, lengths)
        z = F.silu(z) if self.qk_l2norm else z
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in z.split(self.widths, -1))
        if self.qk_l2norm:
            return (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v), conv_state
        return (q * q.shape[-1] ** -0.5, k, v), conv_state

    def norm_and_gate(self, y: Tensor, x: Tensor) -> Tensor:
        """Normalise and gate.

        Args:
            y: what was read, `[B, T, H, d_v]`.
            x: the bounded tokens `[B, T, D]`.

        Returns:
            `[B, T, H d_v]`, heads side by side.
        """
        weight = self.o_norm.weight
        if self.g_proj is None:
            return F.rms_norm(y, weight.shape, weight, OUTPUT_EPS).flatten(2)
        gate = self.g_proj(x).unflatten(-1, (self.num_heads, -1))
        return gated_rms_norm(y, gate, weight, OUTPUT_EPS).flatten(2)


def empty_memory(like: Tensor, shape: tuple[int, ...], conv_state: Tensor | None) -> LinearRecurrenceState:
    """Return the state, of one row, of an empty memory `shape` `[H, d_k, d_v]`, at least in float32.

    Args:
        like: a parameter whose device, and precision if it is higher, the memory has; no linear layer's, whose weight
            may be quantised.
        shape: of the memory.
        conv_state: of the convolution.
    """
    matrix = torch.zeros(1, *shape, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    return LinearRecurrenceState(GatedDeltaRuleState(matrix), conv_state)


def head_dim(hidden_size: int, num_heads: int) -> int:
    """Return `hidden_size / num_heads`.

    Raises:
        ValueError: that is not a whole number of at least 1.
    """
    check_positive(hidden_size=hidden_size, num_heads=num_heads)
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size={hidden_size} is not a multiple of num_heads={num_heads}")
    return hidden_size // num_heads
