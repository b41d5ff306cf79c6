"""MAG: sliding-window attention and neural memory side by side."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from titans.layers.gating import MemoryGate
from titans.layers.mixer import Mixer
from titans.layers.neural_memory import NeuralMemory, NeuralMemoryState
from titans.layers.registry import register_mixer
from titans.layers.sliding_window_attention import AttentionState, SlidingWindowAttention
from titans.ops.state import State


class MemoryAsGateState(State):
    """State of `MemoryAsGate`: those of its two branches."""

    attention: AttentionState
    memory: NeuralMemoryState


class MemoryAsGate(Mixer):
    """Attention and memory side by side; the memory's output gates the attention's (docs/semantics.md, section 5).

    `o = (a norm(attention(x)) + b) * sigmoid(norm(memory(x)))`, with a and b of `MemoryGate`. The attention's
    persistent tokens are the memory's first.

    Args:
        attention: the short-term branch.
        memory: the long-term branch, of the same width and without persistent tokens of its own.
        paper_form: b = 0, and a starts at 1: the paper's gate. Default False.
    """

    def __init__(self, attention: SlidingWindowAttention, memory: NeuralMemory, paper_form: bool = False) -> None:
        super().__init__()
        self.hidden_size = memory.hidden_size
        self.attention_branch, self.memory = attention, memory
        self.view = attention.view
        self.gate = MemoryGate(memory.hidden_size, shifted=not paper_form)

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> Self:
        """Build the layer of a model; see `Mixer.from_config`."""
        attention = SlidingWindowAttention.from_config(config)
        options = {"paper_form": config.paper_form, **options}
        return cls(attention, NeuralMemory.from_config(config, persistent_tokens=0), **options)

    def state_limits(self) -> dict[str, int]:
        """Return those of both branches; see `Mixer.state_limits`."""
        branches = {"attention": self.attention_branch, "memory": self.memory}
        return {f"{key}.{name}": n for key, branch in branches.items() for name, n in branch.state_limits().items()}

    def empty_state(self, batch_size: int) -> MemoryAsGateState:
        """Return the state before any token, persistent ones included."""
        return MemoryAsGateState(self.attention_branch.empty_state(batch_size), self.memory.empty_state(batch_size))

    def start(self, batch_size: int) -> MemoryAsGateState:
        """Return the state in which `batch_size` streams start: the memory has read the persistent tokens."""
        memory = self.memory.after(self.attention_branch.attention.persistent)
        return MemoryAsGateState(self.attention_branch.empty_state(1), memory).expand(batch_size)

    def mix(self, x: Tensor, state: MemoryAsGateState, lengths: Tensor | None) -> tuple[Tensor, MemoryAsGateState]:
        """Run both branches and gate; see `Mixer.mix`."""
        y, attention = self.attention_branch.mix(x, state.attention, lengths)
        m, memory = self.memory.mix(x, state.memory, lengths)
        return self.gate(self.gate.attention_norm(y), m), MemoryAsGateState(attention, memory)


register_mixer("memory_as_gate", MemoryAsGate)
