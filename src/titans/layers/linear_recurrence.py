"""What the mixers over `titans.ops.gated_delta_rule` have in common."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from titans.layers.convolution import CausalConvolution
from titans.layers.mixer import Mixer, bounded, valid
from titans.ops.gated_delta_rule import GatedDeltaRuleState, gated_delta_rule
from titans.ops.gated_rms_norm import gated_rms_norm
from titans.state import LinearRecurrenceState

OUTPUT_EPS = 1e-6


class LinearRecurrence(Mixer):
    """A matrix memory per head, `S_t = decay(S_{t-1}) + write`, read by `q_t S_t`.

    Queries, keys and values are linear in x, queries divided by `sqrt(d_k)`; or, as `unit`, `SiLU(conv(x W))` with
    queries and keys of unit length per head. What is read is normalised per head, gated by `SiLU(x W)` where there
    is a gate, and projected. Subclasses say how the memory decays and is written: `gates`. Inputs beyond ±10,000 are
    clipped.

    Args:
        dim: width D of the input and the output.
        heads: memory heads H.
        key_width: d_k, channels of a head's queries and keys.
        value_width: d_v, channels of a head's values.
        unit: the form of queries, keys and values.
        convolution: short convolutions on all three.
        gate: gate what is read.
        chunk_size: tokens that are treated together; changes speed only.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        key_width: int,
        value_width: int,
        *,
        unit: bool,
        convolution: bool,
        gate: bool,
        chunk_size: int,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, heads=heads, key_width=key_width, value_width=value_width, chunk_size=chunk_size)
        self.dim, self.heads, self.unit, self.chunk_size = dim, heads, unit, chunk_size
        self.widths = [heads * key_width, heads * key_width, heads * value_width]  # of queries, keys, values
        self.projection = nn.Linear(dim, sum(self.widths), bias=False)
        self.convolution = CausalConvolution(sum(self.widths)) if convolution else None
        self.output_norm = nn.RMSNorm(value_width, eps=OUTPUT_EPS)
        self.output_gate = nn.Linear(dim, heads * value_width, bias=False) if gate else None
        self.output = nn.Linear(heads * value_width, dim, bias=False)

    @abstractmethod
    def gates(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Tell how the memory decays and is written; both at least in float32.

        Args:
            x: tokens `[B, N, D]`, bounded.

        Returns:
            `(log_decay, beta)` as of `titans.ops.gated_delta_rule`: `[B, N, H]` or, for a decay of each key channel,
            `[B, N, H, d_k]`; None for no decay, and for no delta rule.
        """

    def empty_state(self, batch_size: int) -> LinearRecurrenceState:
        """Return the state before any token: an empty memory; see `Mixer.empty_state`."""
        widths = [width // self.heads for width in self.widths[1:]]
        tail = None if self.convolution is None else self.convolution.initial_tail()
        return empty_memory(self.output_norm.weight, (self.heads, *widths), tail).expand(batch_size)

    def mix(
        self, x: Tensor, state: LinearRecurrenceState, lengths: Tensor | None
    ) -> tuple[Tensor, LinearRecurrenceState]:
        """Write and read tokens whose padding, if any, is on the right; see `Mixer.mix`."""
        x = bounded(x)
        (q, k, v), tail = self._project(x, state.tail, lengths)
        log_decay, beta = self.gates(x)
        y, memory = gated_delta_rule(
            q, k, v, log_decay, beta, state.memory, chunk_size=self.chunk_size, mask=valid(x, lengths)
        )
        out: Tensor = self.output(self.read_out(y, x))
        return out, LinearRecurrenceState(memory, tail)

    def _project(
        self, x: Tensor, tail: Tensor | None, lengths: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
        """Return queries, keys and values, `[B, N, H, d]` each, and the convolution's inputs to carry."""
        z = self.projection(x)
        if self.convolution is not None:
            assert tail is not None  # checked with the state
            z, tail = self.convolution(z, tail, lengths)
        z = F.silu(z) if self.unit else z
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in z.split(self.widths, -1))
        if self.unit:
            return (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v), tail
        return (q * q.shape[-1] ** -0.5, k, v), tail

    def read_out(self, y: Tensor, x: Tensor) -> Tensor:
        """Normalise and gate.

        Args:
            y: what was read, `[B, N, H, d_v]`.
            x: the bounded tokens `[B, N, D]`.

        Returns:
            `[B, N, H d_v]`, heads side by side.
        """
        weight = self.output_norm.weight
        if self.output_gate is None:
            return F.rms_norm(y, weight.shape, weight, OUTPUT_EPS).flatten(2)
        return gated_rms_norm(y.transpose(1, 2), weight, self.output_gate(x), OUTPUT_EPS)


def empty_memory(like: Tensor, shape: tuple[int, ...], tail: Tensor | None) -> LinearRecurrenceState:
    """Return the state, of one row, of an empty memory `shape` `[H, d_k, d_v]`, at least in float32.

    Args:
        like: a parameter whose device, and precision if it is higher, the memory has; no linear layer's, whose weight
            may be quantised.
        shape: of the memory.
        tail: of the convolution.
    """
    matrix = torch.zeros(1, *shape, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    return LinearRecurrenceState(GatedDeltaRuleState(matrix), tail)


def head_width(dim: int, heads: int) -> int:
    """Return `dim / heads`.

    Raises:
        ValueError: that is not a whole number of at least 1.
    """
    check_positive(dim=dim, heads=heads)
    if dim % heads:
        raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
    return dim // heads


def check_positive(**values: int) -> None:
    """Refuse sizes below 1.

    Raises:
        ValueError: it names the first of them.
    """
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
