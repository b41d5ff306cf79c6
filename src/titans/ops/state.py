"""State as a value: a base class for the typed trees of tensors that layers and models hand out and take in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Self, dataclass_transform

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass_transform(frozen_default=True)
class State:
    """Base of every state: a frozen dataclass whose leaves are tensors with the batch in dimension 0, or integers.

    Subclasses are registered as pytrees, so `torch.utils._pytree`, checkpointing and `torch.compile` see
    through them. No method changes the state it is called on.
    """

    def __init_subclass__(cls, frozen: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=frozen)(cls)
        pytree.register_dataclass(cls)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """Apply `fn` to every tensor.

        Args:
            fn: maps a tensor to a tensor.

        Returns:
            A new state; integers are kept as they are.
        """
        mapped: Self = pytree.tree_map_only(Tensor, fn, self)
        return mapped

    def tensors(self) -> Iterator[Tensor]:
        """Iterate over every tensor of the state, in a fixed order."""
        return (leaf for leaf in pytree.tree_leaves(self) if isinstance(leaf, Tensor))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast the floating-point tensors; masks and positions are only moved.

        Args:
            *args: a device, a dtype, or both, as of `Tensor.to`.
            **kwargs: the same by name.

        Returns:
            A new state.
        """
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)

        def move(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None, non_blocking)

        return self.map(move)

    def detach(self) -> Self:
        """Cut the state from the autograd graph (truncated back-propagation through time)."""
        return self.map(Tensor.detach)

    def clone(self) -> Self:
        """Copy every tensor."""
        return self.map(Tensor.clone)

    def select(self, rows: Tensor) -> Self:
        """Take batch rows, in any order and with repetitions.

        Args:
            rows: row numbers `[B']`, int64.

        Returns:
            The state of the `B'` chosen rows.
        """
        return self.map(lambda x: x.index_select(0, rows.to(x.device)))

    def expand(self, batch_size: int) -> Self:
        """Repeat a state of one row, without copying.

        Args:
            batch_size: rows B of the result.

        Returns:
            A state of B rows that share their memory.
        """
        return self.map(lambda x: x.expand(batch_size, *x.shape[1:]))

    def where(self, rows: Tensor, other: Self) -> Self:
        """Choose row by row between two states of the same structure.

        Args:
            rows: `[B]`, bool; True takes the row of this state, False the row of `other`.
            other: a state of the same configuration and batch size.

        Returns:
            The mixed state.

        Raises:
            ValueError: the two states differ in structure.
        """
        mine, spec = pytree.tree_flatten(self)
        theirs, other_spec = pytree.tree_flatten(other)
        if spec != other_spec:
            raise ValueError("cannot mix states of different structure: were both made by the same model?")
        mixed: Self = pytree.tree_unflatten([_choose(rows, a, b) for a, b in zip(mine, theirs, strict=True)], spec)
        return mixed

    @property
    def nbytes(self) -> int:
        """Bytes held by the tensors of the state."""
        return sum(x.numel() * x.element_size() for x in self.tensors())


def _choose(rows: Tensor, a: Tensor | int, b: Tensor | int) -> Tensor | int:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b:
        return a
    a = torch.as_tensor(a, device=rows.device)
    b = torch.as_tensor(b, device=rows.device)
    shape = (-1,) + (1,) * (max(a.dim(), b.dim(), 1) - 1)
    return torch.where(rows.view(shape), a, b)
