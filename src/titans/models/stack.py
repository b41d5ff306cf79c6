"""The stack of blocks that every Titans model has, on Hugging Face's base classes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from titans.layers.feed_forward import SwiGLU
from titans.layers.registry import MIXERS
from titans.layers.sharding import gathers
from titans.models.configuration import StackConfig
from titans.models.memory_state import MemoryState
from titans.models.packing import PackedRows
from titans.models.provenance import Provenance
from titans.models.segment_recurrence import SegmentRecurrence, SegmentState
from titans.ops.state import State


class StackOutput(NamedTuple):
    """What `TitansStack.read` returns."""

    hidden: Tensor  # [B, T, D], normalised
    state: MemoryState | None
    all_hidden: tuple[Tensor, ...] | None  # what enters each block, then `hidden`


class TitansBlock(GradientCheckpointingLayer):
    """Pre-norm residual block: the mixers that the variant has at this place, then the feed-forward layer."""

    def __init__(self, config: StackConfig, layer: int) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(MIXERS[name](config) for name in config.mixers(layer))
        self.mixer_norms = nn.ModuleList(nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in self.mixers)
        assert config.intermediate_size is not None  # set by the configuration
        self.feed_forward = SwiGLU(config.hidden_size, config.intermediate_size)
        self.feed_forward_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    @gathers
    def initial_states(self, batch_size: int) -> list[State]:
        """Return the states in which the mixers start `batch_size` streams."""
        mixers: Any = self.mixers  # which may stand in wrappers, such as PEFT's
        return [mixer.initial_state(batch_size) for mixer in mixers]

    def forward(self, hidden: Tensor, states: list[State] | None, mask: Tensor | None) -> tuple[Tensor, list[State]]:
        """Transform `hidden` `[B, T, D]`, continuing from the states of the block's mixers (None: a new stream)."""
        if states is not None and len(states) != len(self.mixers):
            raise ValueError(
                f"the state comes from another configuration: its blocks have {len(states)} mixers, "
                f"this model's {len(self.mixers)}"
            )
        final = []
        for i, (mixer, norm) in enumerate(zip(self.mixers, self.mixer_norms, strict=True)):
            y, state = mixer(norm(hidden), None if states is None else states[i], mask)
            hidden = hidden + y
            final.append(state)
        return hidden + self.feed_forward(self.feed_forward_norm(hidden)), final


class TitansPreTrainedModel(PreTrainedModel):
    """Base of the Titans models: configuration, initialisation, and what Hugging Face needs to know."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # attention is PyTorch's own
    _no_split_modules = ["TitansBlock"]  # noqa: RUF012
    _is_stateful = True  # a memory cannot take tokens back, so assisted decoding is refused

    @classmethod
    def is_custom_code(cls) -> bool:
        """Say no: every initialisation goes through `torch.nn.init`, which transformers keeps off what was loaded.

        Of custom code it would leave out modules without parameters of their own, such as a memory without a norm.
        """
        return False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is None or type(module).__module__.startswith("torch."):
            super()._init_weights(module)  # type: ignore[no-untyped-call]
        else:  # parameters that have no standard initialisation
            reset()


class TitansStack(TitansPreTrainedModel):
    """Blocks and a final norm; subclasses add what turns their input into vectors.

    Args:
        config: the configuration.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(TitansBlock(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.recurrence = SegmentRecurrence(config) if config.variant == "rmt" else None
        self.gradient_checkpointing = False

    @gathers
    def initial_state(self, batch_size: int) -> MemoryState:
        """Return the state before the first token of `batch_size` streams, persistent tokens already read."""
        segment = None if self.recurrence is None else self.recurrence.initial_state(batch_size)
        return MemoryState(self._initial_states(batch_size), 0, Provenance.of(self), segment)

    def empty_state(self, batch_size: int) -> MemoryState:
        """Return a state of the structure and sizes that this model's states have, for no use but to compare."""
        blocks: Any = self.layers
        layers = [[mixer.empty_state(batch_size) for mixer in block.mixers] for block in blocks]
        segment = None if self.recurrence is None else self.recurrence.initial_state(batch_size)
        return MemoryState(layers, 0, None, segment)

    def state_limits(self) -> dict[str, int]:
        """Name the counters of this model's states that are bounded, by their place, with their largest values."""
        blocks: Any = self.layers
        parts = {f"layers.{i}.{j}": mixer for i, block in enumerate(blocks) for j, mixer in enumerate(block.mixers)}
        if self.recurrence is not None:
            parts["segment"] = self.recurrence
        return {f"{place}.{name}": n for place, part in parts.items() for name, n in part.state_limits().items()}

    def _initial_states(self, batch_size: int) -> list[list[State]]:
        blocks: Any = self.layers  # which may stand in wrappers, such as torch.compile's
        return [block.initial_states(batch_size) for block in blocks]

    def read(
        self,
        hidden: Tensor,
        state: MemoryState | None,
        mask: Tensor | None,
        use_cache: bool | None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """Read the next vectors of a stream.

        Args:
            hidden: `[B, T, D]`.
            state: what an earlier call handed out; None starts a new stream.
            mask: `[B, T]`, bool, False for padding; None for none.
            use_cache: return the state. Default: the configuration's in evaluation, False in training.
            output_hidden_states: return what enters each block, too. Default False.

        Returns:
            The normalised outputs, the state after the last vector or None, and all hidden states or None.

        Raises:
            ValueError: a state that is not of this configuration and batch, or one that gradients would have to pass
                under reentrant checkpointing.
        """
        if state is not None:
            if not isinstance(state, MemoryState):
                raise ValueError(
                    f"the state is a {type(state).__name__}: expected a MemoryState that this model handed out, "
                    "or None to start a new stream"
                )
            state = state.for_rows(hidden.shape[0], len(self.layers))
            self._check_segment(state.segment)
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        self._check_checkpointing(state, use_cache)
        tokens = hidden.shape[1] + (0 if state is None else state.tokens)
        provenance = Provenance.of(self, None if state is None else state.provenance) if use_cache else None
        layers = None if state is None else state.layers
        segment, run = None, partial(self._run, output_hidden_states)
        if self.recurrence is None:
            seen, layers = run(hidden, layers, mask)
        else:
            batch = hidden.shape[0]
            fresh = self._initial_states(batch)
            segment = self.recurrence.initial_state(batch) if state is None else state.segment
            seen, layers, segment = self.recurrence(run, hidden, layers or fresh, segment, mask, fresh)
        final = MemoryState(layers, tokens, provenance, segment) if use_cache else None
        return StackOutput(seen[-1], final, tuple(seen) if output_hidden_states else None)

    def read_packed(
        self,
        hidden: Tensor,
        packed: PackedRows,
        state: MemoryState | None,
        use_cache: bool | None,
        output_hidden_states: bool = False,
    ) -> StackOutput:
        """Read packed rows, each document as a new stream; arguments as of `read`.

        Raises:
            ValueError: a state is passed or asked for.
        """
        if state is not None or use_cache:
            raise ValueError(
                "packed rows hold several documents and neither take nor hand out a state: give the document that goes "
                "on a row of its own, and pass use_cache=False with packed rows"
            )

        def read(batch: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
            seen = self.read(batch, None, mask, False, output_hidden_states)
            return (seen.hidden, *(seen.all_hidden or ()))

        found, *all_hidden = packed.read(read, hidden)
        return StackOutput(found, None, tuple(all_hidden) if output_hidden_states else None)

    def _check_checkpointing(self, state: MemoryState | None, use_cache: bool) -> None:
        """Refuse a state, in or out, whose gradients reentrant checkpointing would drop: it sees no tensors inside."""
        options = getattr(getattr(self, "_gradient_checkpointing_func", None), "keywords", {})
        at_work = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        if not at_work or not options.get("use_reentrant"):
            return
        if use_cache or (state is not None and any(x.requires_grad for x in state.tensors())):
            raise ValueError(
                "gradient checkpointing with use_reentrant=True drops the gradients that pass through a state: "
                "switch it on with use_reentrant=False"
            )

    def _check_segment(self, segment: SegmentState | None) -> None:
        expected = None if self.recurrence is None else self.recurrence.memory.shape
        if (None if segment is None else segment.memory.shape[1:]) != expected:
            raise ValueError(
                "the state comes from another configuration: its memory tokens are not those of this model"
            )

    def _run(
        self, keep: bool, hidden: Tensor, states: list[list[State]] | None, mask: Tensor | None
    ) -> tuple[list[Tensor], list[list[State]]]:
        """Run all blocks; returns what entered each, if it is to be kept, with the normalised outputs, and states."""
        seen, final = [], []
        for i, layer in enumerate(self.layers):
            if keep:
                seen.append(hidden)
            hidden, layer_state = layer(hidden, None if states is None else states[i], mask)
            final.append(layer_state)
        return [*seen, self.norm(hidden)], final
