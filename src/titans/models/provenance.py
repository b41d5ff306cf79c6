"""Which model a state comes from: so that it can be saved with, and checked against, the weights it belongs to."""

from __future__ import annotations

import weakref
from typing import Any, Self

import torch
from torch import nn
from torch.utils import _pytree as pytree


class Provenance:
    """The model that made a state, and how often its weights had been changed by then.

    Provenances of one model are equal, whatever became of its weights. In a state, a provenance is a part of the
    structure and no leaf: states of two models cannot be mixed. It keeps no model alive and is not pickled.

    Args:
        model: the model.
        version: its `weights_version`; None where that cannot be known.
    """

    def __init__(self, model: nn.Module, version: int | None) -> None:
        self.model = weakref.ref(model)
        self.version = version

    @classmethod
    def of(cls, model: nn.Module, before: Provenance | None = None) -> Provenance:
        """Name the model that hands out a state.

        Args:
            model: the model, as it is now.
            before: the provenance of the state that it went on from. If that is this model, it stays: a stream that
                began under other weights remains marked as such.

        Returns:
            The provenance of the new state.
        """
        if torch.compiler.is_compiling():
            return cls(model, None)  # a version would be a constant of the graph
        if before is not None and before.model() is model:
            return before
        return cls(model, weights_version(model))

    def is_stale(self) -> bool:
        """Tell whether the weights are known to have changed since."""
        model = self.model()
        return model is not None and self.version is not None and self.version != weights_version(model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Provenance) and self.model is other.model  # a model has one weak reference

    def __hash__(self) -> int:
        return id(self.model)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unknown, ()


def _unknown() -> None:
    """Stand for a provenance in a pickle."""


torch.serialization.add_safe_globals([_unknown])


# A node without leaves, kept as it is by whatever maps, joins or compiles states.
pytree.register_pytree_node(
    Provenance,
    lambda provenance: ([], provenance),
    lambda _, provenance: provenance,
    flatten_with_keys_fn=lambda provenance: ([], provenance),
)


def weights_version(model: nn.Module) -> int:
    """Return a number that changes when a weight is replaced or written in place, other than through `.data`.

    Args:
        model: the model.

    Returns:
        The number; it means nothing in another process.
    """
    weights = [*model.parameters(), *model.buffers()]
    return hash(tuple((id(w), w.dtype, 0 if w.is_inference() else w._version) for w in weights))
