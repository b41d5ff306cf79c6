"""Configurations that cannot work are refused before anything is built."""

import pytest
import torch

from titans import NeuralMemory, TitansConfig, register_mixer


@pytest.mark.parametrize(("fields", "message"), [
    ({"variant": "rnn"}, "variant='rnn'"),
    ({"memory": {"rule": "online"}}, "memory: rule='online'"),
    ({"memory": {"activation": "tanh"}}, "memory: activation='tanh'"),
    ({"memory": {"gates": "layer"}}, "memory: gates='layer'"),
    ({"hidden_size": 30}, "hidden_size=30 is not a multiple of num_attention_heads=4"),
    ({"hidden_size": 30, "num_attention_heads": 3, "memory": {"num_heads": 4}}, "30 is not a multiple of memory.num_h"),
    ({"memory": {"rule": "token", "norm": True}}, "rule='token' needs norm=False"),
    ({"memory": {"rule": "token", "depth": 1, "gates": "chunk"}}, "gates='chunk' needs rule"),
    ({"memory": {"theta_max": 0.0}}, "memory: theta_max=0.0"),
    ({"rms_norm_eps": "x"}, "rms_norm_eps='x' must be a positive number"),
    ({"rope_theta": -1.0}, "rope_theta=-1.0"),
    ({"initializer_range": float("inf")}, "initializer_range=inf"),
    ({"memory": {"theta_max": float("nan")}}, "memory: theta_max=nan"),
    ({"memory": {"gate_floor": 1}}, "memory: gate_floor=1 must be a share of an open gate: at least 0 and less than 1"),
    ({"memory": {"gate_floor": float("nan")}}, "memory: gate_floor=nan"),
    ({"memory": {"gate_floor": "x"}}, "memory: gate_floor='x'"),
    ({"memory": {"theta_max": 0.5, "rule": "chunk"}}, "memory: theta_max=0.5 leaves no room for momentum"),
    ({"num_persistent_tokens": -1}, "num_persistent_tokens=-1"),
    ({"hidden_size": 64.0}, "hidden_size=64.0"),
    ({"hidden_size": True}, "hidden_size=True"),
    *[({name: value}, f"{name}={value}") for value in (0, -2) for name in (
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "sliding_window",
        "segment_length", "num_retrieved_tokens")],
    *[({"memory": {name: value}}, f"memory: {name}={value}") for value in (0, -2, True, 1.0) for name in (
        "num_heads", "depth", "expansion", "chunk_size")],
    ({"memory": {"momentum": 1}}, "momentum=1 must be True or False"),
    ({"memory": {"dpth": 1}}, "a memory has no option dpth: did you mean depth"),
    ({"memory": 3}, "memory=3 must be a MemoryConfig or a mapping"),
    ({"memory_depth": 1}, "memory_depth is no field: the memory's options stand together"),
    ({"layers": ["rnn"]}, "layers holds 'rnn', which is no mixer"),
    ({"layers": ["memory"], "variant": "mal"}, "give one of the two"),
    ({"layers": ["memory", "attention"], "num_hidden_layers": 1}, "no room for the 2 kinds of block"),
])  # fmt: skip
def test_fields_that_cannot_work(fields, message):
    with pytest.raises(ValueError, match=message):
        TitansConfig(**fields)


def test_only_the_first_five_fields_need_a_choice():
    config = TitansConfig(variant="mag", vocab_size=100, hidden_size=24, num_hidden_layers=1, num_attention_heads=3)
    assert config.memory.num_heads == 3
    assert config.intermediate_size == 64
    assert config.model_type == "titans"


@pytest.mark.parametrize("layers", ["memory", [], [1], [["memory", ["attention"]]], {"memory": 1}, [None]])
def test_layers_that_are_no_list_of_names(layers):
    with pytest.raises(ValueError, match="must be a list of mixers' names"):
        TitansConfig(layers=layers)


@pytest.mark.parametrize(("name", "layer", "match"), [
    ("", NeuralMemory, "needs a name"),
    ("mine", torch.nn.Linear, "a subclass of"),
    ("mine", 3, "a subclass of"),
    ("memory", NeuralMemory, "there is a mixer memory already"),
])  # fmt: skip
def test_mixers_that_cannot_be_registered(name, layer, match):
    with pytest.raises(ValueError, match=match):
        register_mixer(name, layer)


def test_the_papers_own_forms_are_one_call_away():
    config = TitansConfig.paper(variant="mac", memory={"depth": 3}, hidden_size=32)
    memory = config.memory
    assert config.paper_form
    assert (memory.rule, memory.depth, memory.has_norm, memory.has_residual, memory.limit_steps) == (
        "chunk", 3, False, False, False,
    )  # fmt: skip
    assert memory.free_gates
    assert memory.max_step == 1
    layer = NeuralMemory.from_config(config)
    assert layer.eta_max == 1
