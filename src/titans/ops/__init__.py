"""Pure functions on tensors: no parameters, no modules."""

from titans.ops.associative_memory import AssociativeMemoryState, associative_memory, initial_state
from titans.ops.gated_delta_rule import GatedDeltaRuleState, gated_delta_rule
from titans.ops.selective_scan import SelectiveScanState, selective_scan

__all__ = [
    "AssociativeMemoryState",
    "GatedDeltaRuleState",
    "SelectiveScanState",
    "associative_memory",
    "gated_delta_rule",
    "initial_state",
    "selective_scan",
]
