"""Streaming in pieces gives the numbers of one forward pass over each document."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast

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
