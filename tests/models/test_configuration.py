"""Configurations that cannot work are refused before anything is built."""

import pytest

from titans import TitansConfig


@pytest.mark.parametrize(("fields", "message"), [
    ({"variant": "rnn"}, "variant='rnn'"),
    ({"memory_rule": "online"}, "memory_rule='online'"),
    ({"memory_activation": "tanh"}, "memory_activation='tanh'"),
    ({"memory_gates": "layer"}, "memory_gates='layer'"),
    ({"hidden_size": 30}, "hidden_size=30 is not a multiple of num_attention_heads=4"),
    ({"hidden_size": 30, "num_attention_heads": 3, "memory_heads": 4}, "hidden_size=30 is not a multiple of memory_h"),
    ({"memory_rule": "token"}, "memory_rule='token' needs memory_depth=1"),
    ({"memory_rule": "token", "memory_depth": 1, "memory_norm": True}, "memory_rule='token' needs memory_depth=1"),
    ({"memory_rule": "token", "memory_depth": 1, "memory_gates": "chunk"}, "memory_gates='chunk' needs memory_rule"),
    ({"memory_theta_max": 0.0}, "memory_theta_max=0.0"),
    ({"rms_norm_eps": "x"}, "rms_norm_eps='x' must be a positive number"),
    ({"rope_theta": -1.0}, "rope_theta=-1.0"),
    ({"initializer_range": float("inf")}, "initializer_range=inf"),
    ({"memory_theta_max": float("nan")}, "memory_theta_max=nan"),
    ({"memory_gate_floor": 1}, "memory_gate_floor=1 must be at least 0 and less than 1"),
    ({"memory_gate_floor": float("nan")}, "memory_gate_floor=nan"),
    ({"memory_gate_floor": "x"}, "memory_gate_floor='x'"),
    ({"memory_theta_max": 0.5}, "memory_theta_max=0.5 leaves no room for momentum"),
    ({"num_persistent_tokens": -1}, "num_persistent_tokens=-1"),
    ({"hidden_size": 64.0}, "hidden_size=64.0"),
    ({"hidden_size": True}, "hidden_size=True"),
    *[({name: value}, f"{name}={value}") for value in (0, -2) for name in (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "sliding_window",
        "segment_length", "num_retrieved_tokens", "memory_heads", "memory_depth", "memory_expansion",
        "memory_chunk_size")],
])  # fmt: skip
def test_fields_that_cannot_work(fields, message):
    with pytest.raises(ValueError, match=message):
        TitansConfig(**fields)


def test_only_the_first_five_fields_need_a_choice():
    config = TitansConfig(variant="mag", vocab_size=100, hidden_size=24, num_hidden_layers=1, num_attention_heads=3)
    assert config.memory_heads == 3
    assert config.intermediate_size == 64
    assert config.model_type == "titans"
