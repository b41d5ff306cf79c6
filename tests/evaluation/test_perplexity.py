"""Streaming in pieces gives the numbers of one forward pass over each document."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedTokenizerFast,
)

from titans import WritePolicy
from titans.data import Document, byte_tokenizer
from titans.errors import TitansError
from titans.evaluation import perplexity

BYTES = byte_tokenizer()
TEXTS = ["a first document of some length, ünïcode too", "short", "x"]


def as_documents(texts):
    return [Document(text, lambda text=text: iter((text[:3], text[3:]))) for text in texts]


def direct(model, texts, bos=(256,)):
    """Losses of every predicted token, document by document, each in one pass."""
    losses = []
    for text in texts:
        ids = torch.tensor([*bos, *text.encode()])
        with torch.no_grad():
            logits = model.eval()(ids[None, :-1]).logits[0] if len(ids) > 1 else torch.zeros(0, 259)
        losses.append(F.cross_entropy(logits.double(), ids[1:], reduction="none"))
    return losses


@pytest.mark.parametrize("piece_length", [1, 5, 1000])
@pytest.mark.parametrize("variant", ["lmm", "mac", "swa", "gated-deltanet"])
def test_equals_whole_document_forward(make_model, variant, piece_length):
    model = make_model(variant)
    losses = direct(model, TEXTS)
    result = perplexity(model, BYTES, as_documents(TEXTS), piece_length=piece_length)
    everything = torch.cat(losses)
    size = sum(len(text.encode()) for text in TEXTS)
    assert (result.documents, result.tokens, result.bytes) == (3, size, size)
    assert result.loss == pytest.approx(float(everything.mean()), rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(float(everything.mean())), rel=1e-4)
    assert result.bits_per_byte == pytest.approx(float(everything.sum()) / math.log(2) / size, rel=1e-5)
    for bucket in result.positions:
        assert bucket.last == 2 * bucket.first - 1
        inside = torch.cat([loss[bucket.first - 1 : bucket.last] for loss in losses])
        assert bucket.tokens == len(inside)
        assert bucket.loss == pytest.approx(float(inside.mean()), rel=1e-5)
    assert [bucket.first for bucket in result.positions] == [1, 2, 4, 8, 16, 32]


def test_without_bos_the_first_token_is_left_out(make_model):
    bare = PreTrainedTokenizerFast(tokenizer_object=BYTES.backend_tokenizer)
    model = make_model()
    expected = torch.cat(direct(model, TEXTS, bos=()))
    result = perplexity(model, bare, as_documents(TEXTS))
    assert result.loss == pytest.approx(float(expected.mean()), rel=1e-5)
    assert result.tokens == result.bytes == sum(len(text.encode()) - 1 for text in TEXTS)


def test_leaves_the_model_in_its_mode_and_reports_progress(make_model):
    model = make_model().train()
    counts = []
    result = perplexity(model, BYTES, as_documents(TEXTS), piece_length=8, progress=counts.append)
    assert model.training
    assert sum(counts) == result.tokens
    assert max(counts) <= 8


def test_refuses_nothing_and_a_small_vocabulary(make_model):
    with pytest.raises(TitansError, match="no token to predict"):
        perplexity(make_model(), BYTES, [])
    with pytest.raises(TitansError, match="larger than the model's vocabulary"):
        perplexity(make_model(vocab_size=100), BYTES, as_documents(TEXTS))


def test_saves_numbers_and_plot(make_model, tmp_path):
    result = perplexity(make_model(), BYTES, as_documents(TEXTS))
    result.save(tmp_path / "new" / "folder")
    saved = json.loads((tmp_path / "new" / "folder" / "perplexity.json").read_text())
    assert saved["loss"] == result.loss
    assert saved["positions"][0] == {"first": 1, "last": 1, "tokens": 3, "loss": result.positions[0].loss}
    assert (tmp_path / "new" / "folder" / "perplexity.png").read_bytes().startswith(b"\x89PNG")


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "initializer_range": 0.5, "vocab_size": 259}
ATTENTION = {"intermediate_size": 16, "num_attention_heads": 2, "max_position_embeddings": 12}
LONG = "a document that is longer than the model has positions for, ünïcode too"


def hugging_face(name):
    torch.manual_seed(0)
    if name == "mamba":
        return MambaForCausalLM(MambaConfig(**SIZES, state_size=4)).eval()
    if name == "gpt":  # it takes no cache
        return OpenAIGPTLMHeadModel(
            OpenAIGPTConfig(vocab_size=259, n_embd=16, n_layer=1, n_head=2, n_positions=12, initializer_range=0.5)
        ).eval()
    return LlamaForCausalLM(LlamaConfig(**SIZES, **ATTENTION)).eval()


def in_windows(model, text, window):
    """Each token from a window that reaches back half its length at least, or to the start; one pass for each token."""
    ids, losses = [256, *text.encode()], []
    for i in range(1, len(ids)):
        start = 0 if window is None or i <= window else -(-(i - window) // (window // 2)) * (window // 2)
        with torch.no_grad():
            logits = model(torch.tensor([ids[start:i]])).logits[0, -1]
        losses.append(F.cross_entropy(logits.double(), torch.tensor(ids[i])))
    return torch.stack(losses)


@pytest.mark.parametrize(
    ("name", "window", "used"), [("llama", None, 12), ("llama", 7, 7), ("gpt", None, 12), ("mamba", None, None)]
)
def test_other_models_read_in_windows_and_predict_each_token_once(name, window, used):
    model = hugging_face(name)
    texts = (LONG, "short", "of 12 tokens")
    expected = torch.cat([in_windows(model, text, used) for text in texts])
    for piece_length in (5, 1000):
        result = perplexity(model, BYTES, as_documents(texts), piece_length=piece_length, window=window)
        assert (result.documents, result.tokens) == (3, len(expected))
        assert result.loss == pytest.approx(float(expected.mean()), rel=1e-5)
        assert result.bits_per_byte == pytest.approx(float(expected.mean()) / math.log(2), rel=1e-5)
        last = in_windows(model, LONG, used)[63:]
        assert result.positions[-1].tokens == len(last)
        assert result.positions[-1].loss == pytest.approx(float(last.mean()), rel=1e-5)
    assert result.protocol == (
        "protocol: each document read whole, its first token predicted from <|bos|>"
        if used is None
        else f"protocol: documents of up to {used} tokens read whole, longer ones in windows of {used}, each read "
        f"from its start and {used // 2} after the one before, its first token predicted from <|bos|>"
    )


def test_windows_are_refused_where_they_do_not_fit(make_model):
    for model, window, message in (
        (hugging_face("llama"), 13, "13 tokens, but the model has positions for 12"),
        (hugging_face("llama"), 1, "at least 2"),
        (make_model(), 12, "windows are for other models"),
    ):
        with pytest.raises(TitansError, match=message):
            perplexity(model, BYTES, as_documents(TEXTS), window=window)
    with pytest.raises(TitansError, match="this is a llama model"):
        perplexity(hugging_face("llama"), BYTES, as_documents(TEXTS), policy=WritePolicy("never"))
