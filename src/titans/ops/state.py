"""State as a value: a base class for the typed trees of tensors that layers and models hand out and take in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from titans.ops.tracing import is_concrete

S = TypeVar("S", bound="State")


@dataclass_transform(frozen_default=True)
class State:
    """Base of every state: a frozen dataclass whose leaves are tensors with the batch in dimension 0, or integers.

    Subclasses are registered as pytrees, so `torch.utils._pytree`, checkpointing and `torch.compile` see
    through them. No method changes the state it is called on.
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ()  # fields whose numbers need not be finite

    def __init_subclass__(cls, frozen: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=frozen)(cls)
        pytree.register_dataclass(cls)
        torch.serialization.add_safe_globals([cls])  # so that `torch.load` reads what `torch.save` wrote

    def check(self) -> None:
        """Refuse numbers that no stream has, wherever they come from; of most states any will do.

        Raises:
            ValueError: it names the first of them.
        """

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
        return _trimmed(self.map(lambda x: x.index_select(0, rows.to(x.device))))

    def expand(self, batch_size: int) -> Self:
        """Repeat a state of one row, without copying.

        Args:
            batch_size: rows B of the result.

        Returns:
            A state of B rows that share their memory.
        """
        return self.map(lambda x: x.expand(batch_size, *x.shape[1:]))

    def row(self, index: int) -> Self:
        """Take one row alone, its counters as plain integers: what `cat` puts together again.

        Args:
            index: the row's number.

        Returns:
            A state of one row with memory of its own. Waits for an accelerator where rows count for themselves.
        """
        alone: Self = _counted(self.select(torch.tensor([index])))
        return alone

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """Put the rows of several states one after the other.

        Args:
            states: at least one, all of one model and on one device.

        Returns:
            A state of all their rows. Where their counters differ, each row gets its own.

        Raises:
            ValueError: the states differ in structure.
        """
        flat = [pytree.tree_flatten(state) for state in level(states)]
        if any(spec != flat[0][1] for _, spec in flat):
            raise ValueError("cannot join states of different structure: were all made by the same model?")
        rows = [state.rows for state in states]
        leaves = [_cat(list(parts), rows) for parts in zip(*(leaves for leaves, _ in flat), strict=True)]
        joined: Self = pytree.tree_unflatten(leaves, flat[0][1])
        return joined

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
        (mine, spec), (theirs, other_spec) = (pytree.tree_flatten(state) for state in level([self, other]))
        if spec != other_spec:
            raise ValueError("cannot mix states of different structure: were both made by the same model?")
        mixed: Self = pytree.tree_unflatten([_choose(rows, a, b) for a, b in zip(mine, theirs, strict=True)], spec)
        return _trimmed(mixed)

    @property
    def shapes(self) -> list[torch.Size]:
        """Sizes that the configuration fixes: of each tensor of several dimensions, but for the batch."""
        return [x.shape[1:] for x in self.tensors() if x.dim() > 1]

    @property
    def rows(self) -> int:
        """Rows B of the batch; the state holds at least one tensor."""
        return next(self.tensors()).shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes held by the tensors of the state."""
        return sum(x.numel() * x.element_size() for x in self.tensors())


class GrowingState(State):
    """A state that holds more the more was read: tensors `[B, M, ...]` of M entries, the newest of which is last.

    Args:
        filled: how many of the entries are real, `[B]`, int64; the first `M - filled` of a row are not.
    """

    filled: Tensor

    @property
    def length(self) -> int:
        """Entries M."""
        return next(x.shape[1] for x in self.tensors() if x.dim() > 1)

    @property
    def shapes(self) -> list[torch.Size]:
        """As of `State`, but for the number of entries."""
        return [x.shape[2:] for x in self.tensors() if x.dim() > 1]

    def resized(self, length: int) -> Self:
        """Keep the newest `length` entries, or put unreal ones before them."""
        return self.map(lambda x: x if x.dim() < 2 else F.pad(x, (0, 0) * (x.dim() - 2) + (length - x.shape[1], 0)))

    def trimmed(self) -> Self:
        """Drop the entries that are real in no row. Waits for an accelerator."""
        if not is_concrete(self.filled):
            return self
        length = int(self.filled.max())
        return self if length == self.length else self.resized(length)


def level(states: Sequence[S]) -> list[S]:
    """Give states one length where they grow.

    Args:
        states: of one structure; others are left as they are.

    Returns:
        The same states, with unreal entries before the shorter ones.
    """
    flat = [pytree.tree_flatten(state, is_leaf=_grows) for state in states]
    if any(spec != flat[0][1] for _, spec in flat) or not any(_grows(x) for leaves, _ in flat for x in leaves):
        return list(states)
    columns = [_levelled(column) for column in zip(*(leaves for leaves, _ in flat), strict=True)]
    return [pytree.tree_unflatten(list(leaves), flat[0][1]) for leaves in zip(*columns, strict=True)]


def _grows(x: object) -> bool:
    return isinstance(x, GrowingState)


def _levelled(parts: tuple[Any, ...]) -> list[Any]:
    if not all(_grows(x) for x in parts):
        return list(parts)
    length = max(x.length for x in parts)
    return [x.resized(length) for x in parts]


def _trimmed(state: S) -> S:
    trimmed: S = pytree.tree_map(lambda x: x.trimmed() if _grows(x) else x, state, is_leaf=_grows)
    return trimmed


def _choose(rows: Tensor, a: Tensor | int, b: Tensor | int) -> Tensor | int:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b:
        return a
    a = torch.as_tensor(a, device=rows.device)
    b = torch.as_tensor(b, device=rows.device)
    shape = (-1,) + (1,) * (max(a.dim(), b.dim(), 1) - 1)
    return torch.where(rows.view(shape), a, b)


def _counted(x: Any) -> Any:
    """Write the counters of a state of one row as the integers that a field `int | Tensor` may hold."""
    if not isinstance(x, State):
        return x
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(x):  # type: ignore[arg-type]  # subclasses are dataclasses
        value = getattr(x, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = int(value) if "int" in str(field.type).split(" | ") else value
        else:
            changes[field.name] = pytree.tree_map(_counted, value, is_leaf=lambda y: isinstance(y, State))
    return dataclasses.replace(x, **changes)  # type: ignore[type-var]


def _cat(parts: list[Tensor | int], rows: list[int]) -> Tensor | int:
    if not any(isinstance(x, Tensor) for x in parts) and len(set(parts)) == 1:
        return parts[0]
    device = next((x.device for x in parts if isinstance(x, Tensor)), None)
    return torch.cat(
        [x if isinstance(x, Tensor) else torch.full((n,), x, device=device) for x, n in zip(parts, rows, strict=True)]
    )
