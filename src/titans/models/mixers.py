"""The token mixers that a configuration can name, each built from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from titans.layers import ttt
from titans.layers.attention import Attention, SlidingWindowAttention
from titans.layers.delta_net import DeltaNet
from titans.layers.full_attention import FullAttention
from titans.layers.gated_delta_net import GatedDeltaNet
from titans.layers.gated_linear_attention import GatedLinearAttention
from titans.layers.mamba import Mamba
from titans.layers.mamba2 import Mamba2
from titans.layers.memory_as_context import MemoryAsContext
from titans.layers.memory_as_gate import MemoryAsGate
from titans.layers.mixer import Mixer
from titans.layers.neural_memory import NeuralMemory
from titans.layers.retention import Retention
from titans.models.configuration import StackConfig


def _memory(config: StackConfig, persistent_tokens: int, fixed: Mapping[str, Any] | None = None) -> NeuralMemory:
    """Build the memory of the configuration, but for the options that are fixed."""
    assert config.memory_heads is not None  # set by the configuration
    options: dict[str, Any] = {
        "depth": config.memory_depth,
        "expansion": config.memory_expansion,
        "chunk_size": config.memory_chunk_size,
        "rule": config.memory_rule,
        "activation": config.memory_activation,
        "residual": config.memory_residual,
        "norm": config.memory_norm,
        "momentum": config.memory_momentum,
        "forgetting": config.memory_forgetting,
        "channelwise_forgetting": config.memory_channelwise_forgetting,
        "use_short_conv": config.memory_convolution,
        "gates": config.memory_gates,
        "persistent_tokens": persistent_tokens,
        "limit_steps": config.memory_limit_steps,
        "theta_max": config.memory_theta_max,
        "gate_floor": config.memory_gate_floor,
    }
    return NeuralMemory(config.hidden_size, config.memory_heads, **options | dict(fixed or {}))


def _attention(config: StackConfig, persistent_tokens: int) -> SlidingWindowAttention:
    return SlidingWindowAttention(
        config.hidden_size, config.num_attention_heads, config.sliding_window, persistent_tokens, config.rope_theta
    )


def _memory_as_context(config: StackConfig) -> MemoryAsContext:
    attention = Attention(
        config.hidden_size, config.num_attention_heads, config.num_persistent_tokens, config.rope_theta
    )
    return MemoryAsContext(attention, _memory(config, 0), config.segment_length, config.num_retrieved_tokens)


def _recurrence(layer: Callable[..., Mixer], config: StackConfig, **options: Any) -> Mixer:
    return layer(config.hidden_size, config.memory_heads, chunk_size=config.memory_chunk_size, **options)


def _mamba2(config: StackConfig) -> Mixer:
    assert config.memory_heads is not None  # set by the configuration
    return _recurrence(Mamba2, config, state_size=config.hidden_size // config.memory_heads)  # states as RetNet's


MIXERS: dict[str, Callable[[StackConfig], Mixer]] = {
    "memory": lambda config: _memory(config, config.num_persistent_tokens),
    "attention": lambda config: _attention(config, config.num_persistent_tokens),
    "attention_alone": lambda config: _attention(config, 0),  # without persistent tokens
    "full_attention": lambda config: FullAttention(config.hidden_size, config.num_attention_heads, config.rope_theta),
    "memory_as_context": _memory_as_context,
    "memory_as_gate": lambda config: MemoryAsGate(_attention(config, config.num_persistent_tokens), _memory(config, 0)),
    "ttt_linear": lambda config: _memory(config, 0, ttt.LINEAR),
    "ttt_mlp": lambda config: _memory(config, 0, ttt.MLP),
    "retention": lambda config: _recurrence(Retention, config),
    "gated_linear_attention": lambda config: _recurrence(GatedLinearAttention, config),
    "delta_net": lambda config: _recurrence(DeltaNet, config, use_short_conv=config.memory_convolution),
    "gated_delta_net": lambda config: _recurrence(GatedDeltaNet, config, use_short_conv=config.memory_convolution),
    "mamba": lambda config: Mamba(config.hidden_size),
    "mamba2": _mamba2,
}
