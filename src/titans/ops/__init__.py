"""Pure functions on tensors: no parameters, no modules."""

from titans.ops.associative_memory import AssociativeMemoryState, associative_memory, initial_state

__all__ = ["AssociativeMemoryState", "associative_memory", "initial_state"]
