"""Reading in pieces gives the answer of reading at once, for our models and for others."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

from titans import WritePolicy
from titans.data import byte_tokenizer
from titans.errors import TitansError
from titans.evaluation.streaming_lm import StreamingLM, load_streaming_lm

BYTES = byte_tokenizer()
TEXT = "The grass is green. The sky is blué."
OTHERS = {
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=259,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=256,
            initializer_range=0.5,
        )
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=259, n_embd=16, n_layer=2, n_head=2, n_positions=256, initializer_range=0.5)
    ),
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=259, hidden_size=16, state_size=4, num_hidden_layers=2, initializer_range=0.5)
    ),
}


def other(name):
    torch.manual_seed(0)
    model = OTHERS[name]().eval()
    model.generation_config.eos_token_id = None
    return model


def whole(model, start, text, new):
    """Greedy, the whole text read again for each token, up to eos."""
    ids = start + list(text.encode())
    read = len(ids)
    while len(ids) < read + new:
        with torch.no_grad():
            token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        if token == BYTES.eos_token_id:
            break
        ids.append(token)
    return ids[read:]


@pytest.mark.parametrize("variant", ["mac", "lmm"])
def test_titans_stream_equals_one_pass(make_model, variant):
    model = make_model(variant).double()
    expected = whole(model, [256], TEXT, 6)
    answers = {StreamingLM(model, BYTES, piece_length=length).answer(TEXT, 6) for length in (7, 1000)}
    assert answers == {BYTES.decode(expected)}


@pytest.mark.parametrize("name", OTHERS)
def test_others_in_pieces_equal_one_pass(name):
    model = other(name)
    expected = BYTES.decode(whole(model, [], TEXT, 6))
    assert [StreamingLM(model, BYTES, piece_length=length).answer(TEXT, 6) for length in (5, 1000)] == [expected] * 2


def test_counts_tokens_without_special_ones():
    reader = StreamingLM(other("llama"), BYTES)
    assert (reader.count(""), reader.count("aé"), reader.count("<|bos|>")) == (0, 3, 7)
    assert reader.count("x" * 200_000) == 200_000


def test_ends_at_end_tokens():
    llama = other("llama")
    token = whole(llama, [], "ab", 1)[0]
    llama.generation_config.eos_token_id = [300, token]
    assert StreamingLM(llama, BYTES).answer("ab", 5) == ""


def test_follows_the_policy(make_model):
    model = make_model("lmm")
    always, never = (
        StreamingLM(model, BYTES, policy=WritePolicy(write)).answer(TEXT, 20) for write in ("always", "never")
    )
    assert always == StreamingLM(model, BYTES).answer(TEXT, 20) != never


def test_digest_is_of_weights_configuration_and_tokenizer(make_model):
    model = make_model("lmm")
    digest = StreamingLM(model, BYTES).digest()
    assert StreamingLM(make_model("lmm"), BYTES).digest() == digest
    model.config.memory = {"gate_floor": 0.1}  # other answers with the same weights
    assert StreamingLM(model, BYTES).digest() != digest
    model.config.memory = {"gate_floor": 0.0}
    assert StreamingLM(model, BYTES).digest() == digest
    model.config._name_or_path = "elsewhere"
    assert StreamingLM(model, BYTES).digest() == digest
    model.lm_head.weight.data[0] += 1
    assert StreamingLM(model, BYTES).digest() != digest


def test_refuses_in_one_sentence(make_model, tmp_path):
    with pytest.raises(TitansError, match=r"250 tokens and the answer up to 8, .* at most 256"):
        StreamingLM(other("llama"), BYTES).answer("x" * 250, 8)
    StreamingLM(other("llama"), BYTES).answer("x" * 250, 7)
    with pytest.raises(TitansError, match="write policies are for Titans"):
        StreamingLM(other("llama"), BYTES, policy=WritePolicy("never"))
    with pytest.raises(TitansError, match="larger than the model's vocabulary"):
        StreamingLM(make_model(vocab_size=100), BYTES)
    with pytest.raises(TitansError, match="no bos token"):
        StreamingLM(other("llama"), BYTES).answer("", 1)
    with pytest.raises(TitansError, match="holds no model"):
        load_streaming_lm(str(tmp_path))
    with pytest.raises(TitansError, match='no device "warp"'):
        load_streaming_lm(str(tmp_path), device="warp")
    model = other("llama")
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(TitansError, match="NaN"):
        StreamingLM(model, BYTES).answer("x", 1)


@pytest.mark.parametrize("name", ["llama", "mac"])
def test_loads_any_folder(make_model, tmp_path, name):
    model = make_model("mac") if name == "mac" else other("llama")
    model.save_pretrained(tmp_path)
    BYTES.save_pretrained(tmp_path)
    reader = load_streaming_lm(str(tmp_path), device="cpu")
    assert reader.name == str(tmp_path)
    assert reader.answer(TEXT, 8) == StreamingLM(model, BYTES).answer(TEXT, 8)
    if name == "llama":
        with pytest.raises(TitansError, match="no Titans model"):
            load_streaming_lm(str(tmp_path), write="never")
        (tmp_path / "model.safetensors").write_bytes(b"damaged")
        with pytest.raises(TitansError, match="cannot load the weights"):
            load_streaming_lm(str(tmp_path))
    else:
        with pytest.raises(TitansError, match="no write policy"):
            load_streaming_lm(str(tmp_path), write="gated")
