"""Presets are as large as their names say; and what a token costs, against what torch counts."""

import functools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import titans
from titans import TitansError, TitansForCausalLM
from titans.models.flops import flops_per_token
from titans.models.presets import MODELS, SCALES, count_parameters, preset_config

SIZES = {"170m": 170e6, "340m": 340e6, "400m": 400e6, "760m": 760e6}
PAPER = {"170m": (12, 768), "340m": (24, 1024), "400m": (24, 1024), "760m": (24, 1536)}


@functools.cache
def configuration(name):
    return preset_config(name)


def test_names():
    assert len(titans.presets()) == 17 * 6 == len(set(titans.presets()))
    assert set(titans.presets()) >= {"deltanet-tiny", "titans-mac-760m", "gated-deltanet-h2-small", "ttt-mlp-400m"}


@pytest.mark.parametrize("scale", SCALES)
def test_models_of_a_scale_have_as_many_parameters(scale):
    counts = {model: count_parameters(configuration(f"{model}-{scale}")) for model in MODELS}
    if scale in SIZES:
        assert all(abs(count / SIZES[scale] - 1) < 0.05 for count in counts.values()), counts
    else:
        assert max(counts.values()) < 1.03 * min(counts.values()), counts
        assert min(counts.values()) == pytest.approx({"tiny": 0.3e6, "small": 5e6}[scale], rel=0.03)


@pytest.mark.parametrize("name", ["titans-mal-340m", "gated-deltanet-h2-170m", "rmt-small", "mamba-tiny"])
def test_counting_equals_building(name):
    config = preset_config(name)
    with torch.device("meta"):
        model = TitansForCausalLM(config)
    assert count_parameters(config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("scale", PAPER)
def test_shapes_are_the_papers(scale):
    for model, variant in MODELS.items():
        config = configuration(f"{model}-{scale}")
        assert config.variant == variant
        assert (config.num_hidden_layers, config.hidden_size) == PAPER[scale]
        assert (config.vocab_size, config.sliding_window, config.segment_length) == (32_000, 2048, 512)
        assert config.memory.chunk_size == (
            16 if variant in ("lmm", "mac", "mag", "mal", "ttt-linear", "ttt-mlp") else 64
        )


def test_a_preset_reads_and_can_be_changed():
    ids = torch.randint(259, (1, 20))
    model = titans.from_preset("deltanet-tiny")
    assert isinstance(model, TitansForCausalLM)
    assert model(ids, labels=ids).loss.isfinite()
    plain, large = (
        preset_config("titans-lmm-tiny"),
        preset_config("titans-lmm-tiny", vocab_size=8192, memory={"depth": 1}),
    )
    assert (large.vocab_size, large.memory.depth, large.memory.chunk_size) == (8192, 1, 16)
    assert large.intermediate_size == plain.intermediate_size


@pytest.mark.parametrize(("name", "overrides", "message"), [
    ("delta-net-tiny", {}, 'no preset "delta-net-tiny": did you mean deltanet-tiny'),
    ("titans-mac-170M", {}, "did you mean titans-mac-170m"),
    ("", {}, "did you mean titans-mac-tiny"),
    ("mamba-tiny", {"hidden_sise": 3}, "hidden_sise is not a field of TitansConfig"),
    ("mamba-tiny", {"hidden_size": 3}, 'preset "mamba-tiny": hidden_size=3 is not a multiple of'),
])  # fmt: skip
def test_what_is_no_preset(name, overrides, message):
    with pytest.raises(TitansError, match=message):
        titans.from_preset(name, **overrides)


# What a token costs: width 8, two blocks, two heads; hence without what is no product of tokens and weights.
OWN = {
    "none": 0,
    "transformer": 4 * 8 * 13 / 2,
    "swa": 4 * 8 * ((1 + 2 + 3 + 4 + 8 * 5) / 12 + 2),  # a window of 5, two persistent tokens
    "retnet": 4 * 2 * (4 * 8),
    "gla": 4 * 2 * (2 * 4),
    "deltanet": 6 * 2 * (4 * 4) + 2 * 4 * 24,  # and convolutions of 4 taps on 24 channels
    "gated-deltanet": 6 * 2 * (3 * 6) + 2 * 4 * 24,
    "mamba": 6 * 16 * 16 + 2 * 4 * 16,
    "mamba2": 4 * 2 * (4 * 8) + 2 * 4 * 24,
}


@pytest.mark.parametrize("variant", OWN)
def test_products_with_weights_equal_what_torch_counts(make_model, variant):
    model, tokens = make_model(variant), 12
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.randint(23, (1, tokens)), use_cache=False)
    counted = counter.get_flop_counts()["Global"]
    products = sum(counted.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    if variant == "swa":
        products -= 2 * 2 * (2 * 2 * 8 * 8)  # keys and values of the persistent tokens: once a call, not a token
    expected = tokens * (flops_per_token(model.config, tokens) - 2 * OWN[variant])
    assert products == pytest.approx(expected, abs=tokens / 2)  # a token's are a whole number


def test_memory_costs(make_model):
    """12 for each of its weights; MAC reads the context, and attends to as many retrieved tokens as to its own."""
    per_block = {}
    for variant in ("none", "swa", "lmm", "mac", "mag", "mal", "ttt-linear"):
        config = make_model(variant, memory={"use_short_conv": False}).config
        per_block[variant] = (flops_per_token(config, 10_000) - flops_per_token(make_model("none").config, 1)) / 2
    # of two heads the last layers, and the fixed ones before them; q, k, v, gate, output; the gates
    layer = 12 * 2 * (4 * 8) + 4 * 2 * (4 * 8) + 2 * (5 * 8 * 8 + 8 * 6)
    assert per_block["lmm"] == layer
    assert per_block["ttt-linear"] == 12 * 2 * 4 * 4 + 2 * (5 * 8 * 8 + 8 * 2)
    assert per_block["mal"] == per_block["mag"] == pytest.approx(layer + per_block["swa"], abs=1)
    attention = 2 * 4 * 8 * 8 + 4 * 8 * (2 * 2.5 + 2)
    assert per_block["mac"] == layer + attention + 2 * 8 * 8 + 2 * 2 * (4 * 8) + 2 * 2 * 8 * 8


def test_rmt_reads_its_memory_tokens_twice_a_segment(make_model):
    """Blocks of segments of 4 between two copies of 2 memory tokens: 8 positions, seeing 4.5 on average."""
    rmt, short = make_model("rmt").config, make_model("transformer").config
    head = 2 * 23 * 8
    assert flops_per_token(rmt, 1000) - head == 2 * (flops_per_token(short, 8) - head)
