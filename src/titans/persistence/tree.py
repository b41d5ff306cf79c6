"""A state as a flat table of named tensors and integers, and back, in the structure that a model's states have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from titans.layers.writing import WriteState
from titans.models.memory_state import MemoryState
from titans.models.write_policy import WritePolicy
from titans.ops.state import GrowingState, State
from titans.persistence.errors import StateFileError

_POLICY = WritePolicy("always")  # any: the states of all have one structure
_LARGEST = 2**62  # what a counter may reach and still be counted on in int64; other numbers are finite

Entries = Mapping[str, Tensor | int]


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Tensor | int]]:
    """Iterate over the tensors and integers of a state.

    Args:
        value: the state, or a part of it.
        path: its name.

    Yields:
        Names such as `layers.0.0.memory.weights.1`, and what they name.
    """
    children: list[tuple[Any, Any]] = []
    if isinstance(value, State):
        children = [(field.name, getattr(value, field.name)) for field in _fields(type(value))]
    elif isinstance(value, list):
        children = list(enumerate(value))
    elif isinstance(value, Tensor | int):
        yield path, value
    for name, child in children:
        yield from flatten(child, _join(path, name))


def unflatten(entries: Entries, model: Any, cast: bool = False) -> MemoryState:
    """Make a state of this model; structure, types and bounds come from the model, only numbers from the entries.

    Args:
        entries: what `flatten` yields, from anywhere.
        model: a `TitansModel`.
        cast: take floating-point numbers of another precision.

    Returns:
        The state, whose tensors are those of the entries.

    Raises:
        StateFileError: the entries are not what a state of this model holds.
    """
    with torch.no_grad():
        like = _POLICY.start(model.empty_state(1))
    builder = _Builder(entries, model.state_limits(), cast)
    state: MemoryState = builder.build(like, "")
    if extra := sorted(entries.keys() - builder.used):
        raise StateFileError(f"it holds {extra[0]}, which no state of this model has")
    return state


class _Builder:
    """Builds a state from entries, and remembers which it used."""

    def __init__(self, entries: Entries, limits: dict[str, int], cast: bool) -> None:
        self.entries, self.cast = entries, cast
        self.used: set[str] = set()
        rows = {x.shape[0] if x.dim() else 0 for x in entries.values() if isinstance(x, Tensor)}
        if len(rows) != 1 or 0 in rows:
            raise StateFileError("its tensors hold no rows, or different numbers of them")
        self.rows = rows.pop()
        self.limits = limits

    def build(self, like: Any, path: str, finite: bool = True) -> Any:
        """Build what stands at `path`, like `like`; a write state only where there is one."""
        if isinstance(like, WriteState) and not any(name.startswith(f"{path}.") for name in self.entries):
            return None
        if isinstance(like, State):
            return self._state(like, path)
        if isinstance(like, list):
            return [self.build(child, _join(path, i)) for i, child in enumerate(like)]
        if isinstance(like, Tensor):
            return self._tensor(path, like.dtype, like.shape[1:], finite)
        return like if like is None else self._counter(path)

    def _state(self, like: State, path: str) -> State:
        if isinstance(like, GrowingState):
            length = self.limits[_join(path, "filled")] = self._length(like, path)
            like = like.resized(length)
        parts = {
            name: self.build(getattr(like, name), _join(path, name), name not in like.may_be_infinite)
            for name in (field.name for field in _fields(type(like)))
        }
        built = type(like)(**parts)
        try:
            built.check()
        except ValueError as error:
            raise StateFileError(f"its {_join(path, error)}") from error
        return built

    def _length(self, like: GrowingState, path: str) -> int:
        """Tell how many entries a state has that grows: as many as the first of its tensors."""
        first = next(n for n in (f.name for f in _fields(type(like))) if getattr(like, n).dim() > 1)
        x = self._take(_join(path, first))
        return x.shape[1] if isinstance(x, Tensor) and x.dim() > 1 else 0

    def _take(self, path: str) -> Tensor | int:
        if path not in self.entries:
            raise StateFileError(f"it lacks {path}")
        self.used.add(path)
        return self.entries[path]

    def _tensor(self, path: str, dtype: torch.dtype, shape: torch.Size, finite: bool) -> Tensor:
        """Take a tensor `[rows, *shape]`."""
        x = self._take(path)
        if not isinstance(x, Tensor) or x.shape[1:] != shape:
            raise StateFileError(f"its {path} is {_describe(x)}, expected the shape {[self.rows, *shape]}")
        if self.cast and dtype.is_floating_point and x.is_floating_point():
            x = x.to(dtype)
        if x.dtype != dtype:
            raise StateFileError(f"its {path} is {_describe(x)}, expected {dtype}")
        if finite and not bool(x.isfinite().all()):
            raise StateFileError(f"its {path} holds numbers that are not finite")
        largest = self.limits.get(path, _LARGEST)
        if not x.is_floating_point() and not 0 <= int(x.min()) <= int(x.max()) <= largest:
            raise StateFileError(f"its {path} counts from {int(x.min())} to {int(x.max())}, beyond 0 to {largest}")
        return x

    def _counter(self, path: str) -> Tensor | int:
        """Take an integer, or one for each row."""
        x = self._take(path)
        if isinstance(x, Tensor):
            return self._tensor(path, torch.int64, torch.Size(), True)
        largest = self.limits.get(path, _LARGEST)
        if not 0 <= x <= largest:
            raise StateFileError(f"its {path} is {x}, beyond 0 to {largest}")
        return x


def _fields(kind: type[State]) -> tuple[Any, ...]:
    return dataclasses.fields(kind)  # type: ignore[arg-type]  # subclasses are dataclasses


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _describe(x: Tensor | int) -> str:
    return f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else f"the integer {x}"
