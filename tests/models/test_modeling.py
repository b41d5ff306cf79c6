"""Every variant: what holds for all mixers, composition, training, saving and loading, bad input."""

import copy
import math
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from tests.invariants import PROPERTIES, VOCABULARY, of_model, the_state_does_not_grow
from titans import NeuralMemory, TitansConfig, TitansForCausalLM, TitansModel
from titans.layers.delta_net import DeltaNet
from titans.layers.full_attention import FullAttention
from titans.layers.gated_delta_net import GatedDeltaNet
from titans.layers.gated_linear_attention import GatedLinearAttention
from titans.layers.mamba import Mamba
from titans.layers.mamba2 import Mamba2
from titans.layers.memory_as_context import MemoryAsContext
from titans.layers.memory_as_gate import MemoryAsGate
from titans.layers.retention import Retention
from titans.layers.sliding_window_attention import SlidingWindowAttention

MIXERS = {  # of each block
    "lmm": [NeuralMemory],
    "mac": [MemoryAsContext],
    "mag": [MemoryAsGate],
    "mal": [NeuralMemory, SlidingWindowAttention],
    "transformer": [FullAttention],
    "swa": [SlidingWindowAttention],
    "rmt": [FullAttention],
    "retnet": [Retention],
    "gla": [GatedLinearAttention],
    "deltanet": [DeltaNet],
    "gated-deltanet": [GatedDeltaNet],
    "mamba": [Mamba],
    "mamba2": [Mamba2],
}


def text(batch, count, seed=0):
    return torch.randint(VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(seed))


def read(model, ids, state=None, mask=None):
    """Logits and state after reading."""
    with torch.no_grad():
        out = model(ids, attention_mask=mask, past_key_values=state, use_cache=True)
    return out.logits, out.cache


# One stream ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[7, 1, 12], [1] * 20])
def test_any_split_equals_one_call_in_float32(make_model, variant, stream, close, lengths):
    model = make_model(variant, torch.float32, fresh=True, initializer_range=0.2, memory={"chunk_size": 16})
    ids = text(2, sum(lengths))
    found = stream(lambda start, stop, state: read(model, ids[:, start:stop], state), lengths)
    close(found, read(model, ids), 1e-4)


@pytest.mark.parametrize("check", PROPERTIES.values(), ids=PROPERTIES)
def test_invariants(model, check):
    if model.config.variant == "rmt" and check is the_state_does_not_grow:
        pytest.skip("it grows up to the end of a segment: see below")
    check(of_model(model))


def test_a_longer_attention_mask_ends_with_this_call(model, close):
    """As `generate` passes it: the mask of all that was read, with only the new tokens."""
    ids, mask = text(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0
    _, state = read(model, ids[:, :6], mask=mask[:, :6])
    close(read(model, ids[:, 6:], state, mask), read(model, ids[:, 6:], state), 0.0)


def test_state_grows_with_full_attention(make_model):
    """By a key and a value of 8 channels for each token and block: without end, or up to the end of a segment."""
    transformer, rmt = make_model("transformer"), make_model("rmt")
    for n in (1, 3, 60):
        assert read(transformer, text(1, n))[1].nbytes == transformer.initial_state(1).nbytes + n * 2 * 2 * 8 * 8
    for n, held in ((1, 2 + 1), (3, 2 + 3), (4, 0), (60, 0), (63, 2 + 3)):
        assert read(rmt, text(1, n))[1].nbytes == rmt.initial_state(1).nbytes + held * 2 * 2 * 8 * 8


def test_composition(make_model, variant, close):
    """Blocks of pre-norm residual mixers in the paper's order, each followed by a feed-forward layer."""
    if variant == "rmt":
        pytest.skip("its blocks see more than the tokens: see test_segment_recurrence.py")
    model = make_model(variant)
    ids = text(2, 9)

    def norm(x, layer):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * layer.weight

    with torch.no_grad():
        x = model.model.embed_tokens.weight[ids]
        for block in model.model.layers:
            assert [type(mixer) for mixer in block.mixers] == MIXERS[variant]
            for mixer, scale in zip(block.mixers, block.mixer_norms, strict=True):
                x = x + mixer(norm(x, scale))[0]
            y, mlp = norm(x, block.feed_forward_norm), block.feed_forward
            x = x + (F.silu(y @ mlp.gate_proj.weight.T) * (y @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
        close(read(model, ids)[0], norm(x, model.model.norm) @ model.lm_head.weight.T, 1e-11)


def test_blocks_that_take_turns(make_model):
    """Samba and Gated DeltaNet-H2 have one mixer a block, and every mixer a feed-forward layer, as published."""
    kinds = {
        ("samba", 4): 2 * [Mamba, SlidingWindowAttention],
        ("gated-deltanet-h2", 5): [Mamba2, GatedDeltaNet, SlidingWindowAttention, Mamba2, GatedDeltaNet],
    }
    for (variant, layers), expected in kinds.items():
        model = make_model(variant, num_hidden_layers=layers)
        assert [type(mixer) for block in model.model.layers for mixer in block.mixers] == expected
        assert not [name for name, _ in model.named_parameters() if "persistent" in name]
    with pytest.raises(ValueError, match="num_hidden_layers=2 has no room for the 3 kinds of block"):
        TitansConfig(variant="gated-deltanet-h2", num_hidden_layers=2)


def test_persistent_tokens_are_where_attention_or_memory_sees_them(make_model):
    names = {v: [n for n, p in make_model(v).model.layers[0].named_parameters() if "persistent" in n]
             for v in ("lmm", "mac", "mag", "mal", "swa")}  # fmt: skip
    assert names == {
        "lmm": ["mixers.0.persistent"],
        "mac": ["mixers.0.attention.persistent"],
        "mag": ["mixers.0.attention_branch.attention.persistent"],  # the memory reads the same ones
        "mal": ["mixers.0.persistent", "mixers.1.attention.persistent"],
        "swa": ["mixers.0.attention.persistent"],
    }


# Training --------------------------------------------------------------------------------------------------


def test_loss_is_the_mean_cross_entropy_of_the_next_token(make_model, variant, close):
    model = make_model(variant)
    ids = text(2, 9)
    labels = ids.clone()
    labels[0, :4] = -100
    out = model(ids, labels=labels)
    expected = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    close(out.loss, expected, 1e-6)


def test_use_cache(make_model):
    model = make_model("mac")
    ids = text(1, 4)
    assert model(ids).cache is not None
    assert model(ids, use_cache=False).cache is None
    assert copy.deepcopy(model).train()(ids).cache is None
    assert copy.deepcopy(model).train()(ids, use_cache=True).cache is not None


def test_logits_to_keep(make_model, same):
    model = make_model("mac")
    ids = text(2, 6)
    whole = read(model, ids)[0]
    with torch.no_grad():
        same(model(ids, logits_to_keep=2).logits, whole[:, -2:])
        same(model(ids, logits_to_keep=torch.tensor([1, 4])).logits, whole[:, [1, 4]])
        mask = torch.rand(ids.shape) < 0.5
        torch.testing.assert_close(model(ids, logits_to_keep=mask).logits, whole[mask])
        same(model(inputs_embeds=model.model.embed_tokens(ids)).logits, whole)


def test_one_step_of_adamw_changes_every_parameter(model):
    model = copy.deepcopy(model).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0)
    ids = text(4, 14)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    for name, p in model.named_parameters():
        assert p.grad.isfinite().all(), name
        assert (p != before[name]).any(), name
    storages = [p.untyped_storage().data_ptr() for p in model.parameters()]
    assert len(set(storages)) == len(storages)


def test_training_lowers_the_loss(make_model, variant):
    model = make_model(variant, torch.float32, fresh=True, num_hidden_layers=1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ids = text(1, 5).repeat(2, 4)
    losses = []
    for _ in range(24):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - math.log(VOCABULARY)) < 0.3
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(make_model, variant, close, reentrant):
    model = make_model(variant).train()
    ids = text(2, 13)

    def gradients():
        model.zero_grad()
        out = model(ids, labels=ids)
        out.loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    expected = gradients()
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": reentrant})
    if reentrant:  # the embeddings must ask for gradients then
        model.enable_input_require_grads()
    close(gradients(), expected, 1e-11)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # slower norms, same numbers
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_keeps_the_inner_state_in_float32(make_model, variant, close, autocast):
    model = make_model(variant, torch.float32, fresh=True, initializer_range=0.1, memory={"chunk_size": 8})
    ids = text(2, 12)
    expected = read(model, ids)[0]
    half = model if autocast else copy.deepcopy(model).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        _, state = read(half, ids[:, :7])
        logits, state = read(half, ids[:, 7:], state)
        half.train()(ids, labels=ids).loss.backward()
    assert logits.isfinite().all()
    close(logits.float(), expected[:, 7:], 0.5)  # MAC is off by up to 0.36
    for layer in state.layers:
        for mixer in layer:
            inner = getattr(mixer, "memory", None)
            inner = getattr(inner, "memory", inner)
            if inner is not None:
                assert {t.dtype for t in inner.tensors() if t.is_floating_point()} == {torch.float32}
    assert all(p.grad is not None and p.grad.isfinite().all() for p in half.parameters())


# Saving and loading ----------------------------------------------------------------------------------------


def test_state_dict_round_trip(model, same):
    other = TitansForCausalLM(copy.deepcopy(model.config)).double().eval()
    missing = other.load_state_dict(model.state_dict())
    assert not missing.missing_keys
    assert not missing.unexpected_keys
    ids = text(1, 7)
    (logits, state), (expected, like) = read(other, ids), read(model, ids)
    same((logits, state.layers), (expected, like.layers))


def test_save_and_load(model, tmp_path, close, same):
    model.save_pretrained(tmp_path)
    other = TitansForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert other.config.to_diff_dict().items() >= model.config.to_diff_dict().items()
    same(dict(other.state_dict()), dict(model.state_dict()))
    ids = text(1, 7)
    (logits, state), (expected, like) = read(other, ids), read(model, ids)
    close((logits, state.layers), (expected, like.layers), 1e-11)  # not bit for bit: weights lie elsewhere in memory
    inner = TitansModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    with torch.no_grad():
        close(inner(ids).last_hidden_state, model.model(ids).last_hidden_state, 1e-11)


def test_every_parameter_is_initialised_when_all_but_one_are_missing(make_model, variant, tmp_path):
    """Built on the meta device, as transformers does, and then filled by its initialisation alone."""
    fresh = make_model(variant, torch.float32, fresh=True)
    fresh.save_pretrained(tmp_path, state_dict={"model.norm.weight": fresh.model.norm.weight.detach().clone()})
    torch.manual_seed(1)
    loaded = TitansForCausalLM.from_pretrained(tmp_path)
    for (name, p), q in zip(loaded.named_parameters(), fresh.parameters(), strict=True):
        assert p.isfinite().all(), name
        if q.std() > 0:
            assert 0.5 < p.std() / q.std() < 2 or p.numel() < 20, name
        else:
            assert torch.equal(p, q), name


def test_tied_embeddings_are_one_parameter(make_model):
    tied, untied = make_model("lmm"), make_model("lmm", tie_word_embeddings=False)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert untied.num_parameters() == tied.num_parameters() + VOCABULARY * 8


FRESH_PROCESS = """
import sys
import titans
assert not {"transformers", "matplotlib", "datasets", "accelerate", "typer", "rich"} & set(sys.modules)
titans.NeuralMemory
assert not {"transformers", "matplotlib", "datasets"} & set(sys.modules)
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
folder, ids = sys.argv[1], torch.load(sys.argv[1] + "/ids.pt")
model = AutoModelForCausalLM.from_pretrained(folder).eval()
assert type(model) is titans.TitansForCausalLM
assert type(AutoModel.from_pretrained(folder)) is titans.TitansModel
assert type(AutoConfig.from_pretrained(folder)) is titans.TitansConfig
with torch.no_grad():
    torch.save(model(ids).logits, folder + "/logits.pt")
"""


def test_auto_model_in_a_fresh_process(make_model, tmp_path, close):
    """`import titans` brings in nothing heavy, and is enough for the Auto classes."""
    model = make_model("mac", torch.float32, fresh=True, initializer_range=0.3)
    model.save_pretrained(tmp_path)
    ids = text(2, 11)
    torch.save(ids, tmp_path / "ids.pt")
    subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, str(tmp_path)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    close(torch.load(tmp_path / "logits.pt"), read(model, ids)[0], 1e-5)


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ids", "message"), [
    (torch.tensor([[1, 23]]), "token 23, outside the vocabulary of 23"),
    (torch.tensor([[-1, 2]]), "token -1, outside the vocabulary"),
    (torch.zeros(2, 0, dtype=torch.long), r"input_ids is torch.int64 \(2, 0\)"),
    (torch.zeros(0, 2, dtype=torch.long), r"input_ids is torch.int64 \(0, 2\)"),
    (torch.zeros(4, dtype=torch.long), r"input_ids is torch.int64 \(4,\)"),
    (torch.zeros(1, 4), "input_ids is torch.float32"),
])  # fmt: skip
def test_bad_tokens(model, ids, message):
    with pytest.raises(ValueError, match=message):
        model(ids)


def test_bad_embeddings(model):
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(text(1, 2), inputs_embeds=torch.zeros(1, 2, 8))
    for shape in ((1, 2, 7), (2, 8), (1, 0, 8)):
        with pytest.raises(ValueError, match="inputs_embeds has shape"):
            model(inputs_embeds=torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(ValueError, match="NaN or infinity"):
        model(inputs_embeds=torch.full((1, 2, 8), torch.nan, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(2, 3), (1, 4), (4,), (2, 1, 4)])
def test_bad_attention_mask(model, shape):
    with pytest.raises(ValueError, match="attention_mask has shape"):
        model(text(2, 4), attention_mask=torch.ones(shape))


def test_state_of_another_batch(model):
    _, state = read(model, text(2, 4))
    with pytest.raises(ValueError, match="holds 2 rows and the batch 3"):
        read(model, text(3, 4), state)


def test_state_that_is_none(model):
    with pytest.raises(ValueError, match="expected a MemoryState"):
        read(model, text(1, 4), [[None]])


def test_state_of_another_configuration(make_model, variant):
    model, ids = make_model(variant), text(1, 7)
    for other in MIXERS:
        if other != variant:
            _, state = read(make_model(other), ids)
            with pytest.raises(ValueError, match=r"another configuration|expected a"):
                read(model, ids, state)
    changes = [{"num_hidden_layers": 1}, {"hidden_size": 16}]
    if variant in ("lmm", "mac", "mag", "mal"):
        chunk = {"rule": "chunk", "gates": "chunk"}
        options = ({"depth": 1}, {"expansion": 4}, {"num_heads": 1}, {"use_short_conv": False}, chunk)
        changes += [{"memory": option} for option in options]
    if variant in ("deltanet", "gated-deltanet"):
        changes += [{"memory": {"num_heads": 1}}, {"memory": {"use_short_conv": False}}]
    if variant in ("mag", "mal", "swa"):
        changes += [{"sliding_window": 6}]
    if variant == "rmt":
        changes += [{"num_memory_tokens": 3}]
    if variant == "mac":
        changes += [{"segment_length": 5}, {"num_retrieved_tokens": 3}]
    for change in changes:
        _, state = read(make_model(variant, **change), ids)
        with pytest.raises(ValueError, match="another configuration"):
            read(model, ids, state)


def test_config_survives_json(make_model, variant, tmp_path):
    config = make_model(variant).config
    config.save_pretrained(tmp_path)
    assert TitansConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_without_mixers_each_token_is_on_its_own(make_model):
    model = make_model("none")
    ids = torch.arange(12).view(2, 6)
    whole = model(ids).logits
    first = model(ids[:, :2])
    assert first.cache.tokens == 2
    assert first.cache.nbytes == 0
    assert torch.equal(torch.cat([first.logits, model(ids[:, 2:], cache=first.cache).logits], 1), whole)
    assert torch.allclose(model(ids.view(12, 1)).logits.view_as(whole), whole, atol=1e-6)
