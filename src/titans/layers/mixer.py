"""The one signature of every token mixer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from titans.layers.sharding import gathers
from titans.ops.chunk_alignment import chunk_alignment
from titans.ops.state import State
from titans.ops.tracing import is_concrete

MAX_INPUT = 1e4


class Mixer(nn.Module):
    """A layer that mixes tokens: `y, state = mixer(x, state=None, mask=None)`.

    Subclasses implement `mix`, `empty_state` and, where a stream starts otherwise than empty,
    `start`. They see padding on the right only: tokens are moved together first, so that padding
    anywhere leaves outputs and state as they would be without it.
    """

    hidden_size: int
    component: ClassVar[str] = "memory"  # what `titans info` counts its parameters as
    view: str | None = None  # what its attention sees, in words for `titans info`; None where there is none

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; by default from its width, memory heads and chunk size.

        Args:
            config: a `titans.models.configuration.StackConfig`.
            **options: what is fixed whatever the configuration says, as registered with the mixer's name.
        """
        memory = config.memory
        options = {"num_heads": memory.num_heads, "chunk_size": memory.chunk_size, **options}
        return cls(hidden_size=config.hidden_size, **options)

    def flops(self, context: int) -> float:
        """Count what a token takes beside the products with linear layers and what the modules inside count.

        Args:
            context: tokens of a stream, over which the mean is taken.

        Returns:
            Floating-point operations of the forward pass, a multiplication and an addition being two.
        """
        return 0.0

    def state_limits(self) -> dict[str, int]:
        """Name the counters of the state that the options bound, as `memory.offset`, with their largest values."""
        return {}

    def forward(self, x: Tensor, state: Any = None, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Mix the next tokens of a stream.

        Args:
            x: tokens `[B, T, D]`, T at least 1.
            state: what an earlier call returned, to continue its stream; None starts a new one. Never
                modified.
            mask: `[B, T]`, bool, False for padding, which is neither read nor written; its output is 0.

        Returns:
            `(y, state)`: outputs `[B, T, D]` and the state after the last token.

        Raises:
            ValueError: the shapes of x, mask and state do not fit the layer, or x is not finite.
        """
        self.check(x, state, mask)
        return self.advance(x, self.start(x.shape[0]) if state is None else state, mask)

    @abstractmethod
    def mix(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """Mix tokens whose padding, if any, is on the right; arguments have been checked.

        Args:
            x: tokens `[B, T, D]`.
            state: the state before them.
            lengths: tokens that count in each row `[B]`; None for all.

        Returns:
            `(y, state)`: outputs `[B, T, D]`, anything where no token counts, and the state after the last that does.
        """

    @abstractmethod
    def empty_state(self, batch_size: int) -> State:
        """Return the state before any token, persistent ones included.

        Args:
            batch_size: rows B.
        """

    def start(self, batch_size: int) -> State:
        """Return the state in which `batch_size` streams start; by default the empty one."""
        return self.empty_state(batch_size)

    @gathers
    def initial_state(self, batch_size: int) -> State:
        """Return the state in which streams start, persistent tokens already read.

        Args:
            batch_size: streams B, one in each row.
        """
        return self.start(batch_size)

    def advance(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        """Do as `forward` does, for a caller that has checked the arguments.

        Args:
            x: tokens `[B, T, D]`.
            state: the state before them.
            mask: `[B, T]`, bool, False for padding; None for none.

        Returns:
            `(y, state)` as of `forward`.
        """
        x, lengths, restore = pad_right(x, mask)
        y, state = self.mix(x, state, lengths)
        return restore(y), state

    def check(self, x: Tensor, state: Any, mask: Tensor | None) -> None:
        """Refuse arguments of `forward` that do not fit this layer.

        Raises:
            ValueError: it says what does not fit.
        """
        if x.dim() != 3 or x.shape[-1] != self.hidden_size or x.shape[1] == 0:
            raise ValueError(f"x has shape {tuple(x.shape)}: expected [batch, tokens >= 1, {self.hidden_size}]")
        if mask is not None and (mask.shape != x.shape[:2] or mask.dtype != torch.bool):
            raise ValueError(
                f"mask is {mask.dtype} {tuple(mask.shape)}: expected torch.bool {tuple(x.shape[:2])}, True for tokens"
            )
        if is_concrete(x) and not _finite(x, mask):
            raise ValueError("x holds NaN or infinity: clean the input, since one such token would spoil the memory")
        if state is not None and not torch.compiler.is_compiling():
            self._check_state(state, x.shape[0])

    def _check_state(self, state: Any, batch: int) -> None:
        kind, shapes = self._state_shapes
        if type(state) is not kind:
            raise ValueError(f"state is a {type(state).__name__}: expected a {kind.__name__} of this layer")
        if state.shapes != shapes:
            raise ValueError("the state comes from another configuration: its shapes are not those of this layer")
        rows = {x.shape[0] for x in state.tensors()}
        if rows != {batch}:
            raise ValueError(f"the state holds {min(rows)} rows and x {batch}: select or repeat the state's rows first")

    @cached_property
    def _state_shapes(self) -> tuple[type[State], list[torch.Size]]:
        with torch.no_grad():
            state = self.empty_state(1)
        return type(state), state.shapes


def pad_right(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, Callable[[Tensor], Tensor]]:
    """Move padding to the right.

    Args:
        x: tokens `[B, T, D]`.
        mask: `[B, T]`, bool, False for padding; None for none.

    Returns:
        The tokens, how many of them count in each row `[B]` (None for all), and what puts results `[B, T, ...]` back in
        place, 0 for padding.
    """
    if mask is None:
        return x, None, lambda y: y
    alignment = chunk_alignment(0, mask, x.shape[0], x.shape[1], x.shape[1], x.device)
    padding = ~mask.unsqueeze(-1)
    return alignment.align(x, 1), mask.sum(1), lambda y: alignment.unalign(y, 1).masked_fill(padding, 0.0)


def _finite(x: Tensor, mask: Tensor | None) -> bool:
    """Tell whether all tokens that count are finite."""
    if x.numel() and bool(torch.stack(torch.aminmax(x.detach())).isfinite().all()):
        return True  # usual, and found without writing a tensor of the size of x
    finite = torch.isfinite(x).all(-1)
    return bool((finite if mask is None else finite | ~mask).all())


def bounded(x: Tensor) -> Tensor:
    """Clip to +-`MAX_INPUT`, beyond which every gate is saturated: the projections of any finite input stay finite."""
    return x.clamp(-MAX_INPUT, MAX_INPUT)


def precise(x: Tensor) -> Tensor:
    """Return `x` in float32, or as it is where that is finer: gates and decays are too small for half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def valid(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """Return the mask `[B, T]` of the first `lengths` `[B]` tokens of `x` `[B, T, ...]`, or None where all count."""
    if lengths is None:
        return None
    return torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)


def last(x: Tensor, lengths: Tensor | None, count: int) -> Tensor:
    """Take what to carry on from `count` carried entries and N new ones, of which the first `lengths` count.

    Args:
        x: `[B, count + T, ...]`.
        lengths: `[B]`; None for N.
        count: entries to carry.

    Returns:
        The last `count` entries that count, `[B, count, ...]`.
    """
    if lengths is None:
        return x[:, x.shape[1] - count :]
    index = lengths.unsqueeze(1) + torch.arange(count, device=x.device)
    return x.gather(1, index.view(*index.shape, *(1,) * (x.dim() - 2)).expand(-1, -1, *x.shape[2:]))


def check_positive(**values: int) -> None:
    """Refuse sizes below 1.

    Raises:
        ValueError: it names the first of them.
    """
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
