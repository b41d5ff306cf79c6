"""Sequence classification: padding, streams, losses, and what transformers' tools make of it."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments, pipeline

from titans import TitansConfig, TitansForCausalLM, TitansForSequenceClassification
from titans.data import byte_tokenizer

SIZES = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "segment_length": 8, "sliding_window": 8, "num_persistent_tokens": 2, "pad_token_id": 258}  # fmt: skip


def classifier(variant="mac", **options):
    torch.manual_seed(0)
    return TitansForSequenceClassification(TitansConfig(variant=variant, **SIZES, **options)).double().eval()


def text(*shape):
    return torch.randint(1, 250, shape, generator=torch.Generator().manual_seed(0))


def test_the_class_is_read_off_the_last_token(variant, close):
    model, ids = classifier(variant, num_labels=3), text(2, 11)
    expected = model.score(model.model(ids).last_hidden_state[:, -1])
    close(model(ids).logits, expected, 1e-12)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(variant, close, side):
    model, ids = classifier(variant), text(1, 9)
    padding, ones = torch.full((1, 4), 258), torch.ones_like(ids)
    order = slice(None, None, 1 if side == "right" else -1)
    row = torch.cat([ids, padding][order], 1)
    mask = torch.cat([ones, torch.zeros_like(padding)][order], 1)
    batch, masks = torch.cat([row, text(1, 13)]), torch.cat([mask, torch.ones(1, 13).long()])
    close(model(batch, attention_mask=masks).logits, torch.cat([model(ids).logits, model(text(1, 13)).logits]), 1e-11)


def test_a_stream_is_classified_piece_by_piece(variant, close):
    model, ids = classifier(variant), text(2, 13)
    state = model(ids[:, :5]).cache
    close(model(ids[:, 5:], cache=state).logits, model(ids).logits, 1e-10)


@pytest.mark.parametrize(("options", "labels", "loss"), [
    ({"num_labels": 3}, torch.tensor([2, 0]), torch.nn.functional.cross_entropy),
    ({"num_labels": 1}, torch.tensor([0.5, -1.0]).double(), lambda x, y: ((x.squeeze(1) - y) ** 2).mean()),
    ({"num_labels": 2, "problem_type": "multi_label_classification"}, torch.eye(2).double(),
     torch.nn.functional.binary_cross_entropy_with_logits),
])  # fmt: skip
def test_the_loss_is_the_problem_types(options, labels, loss):
    out = classifier(**options)(text(2, 7), labels=labels)
    torch.testing.assert_close(out.loss, loss(out.logits, labels))


def test_what_cannot_be_classified():
    model, ids = classifier(), text(2, 6)
    with pytest.raises(ValueError, match="packed rows cannot be classified"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
    with pytest.raises(ValueError, match="a row without a token"):
        model(ids, attention_mask=torch.tensor([[1] * 6, [0] * 6]))


def test_a_language_model_becomes_a_classifier(tmp_path):
    language = TitansForCausalLM(TitansConfig(**SIZES))
    language.save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    assert type(model) is TitansForSequenceClassification
    assert model.score.weight.shape == (5, 16)
    for name, weight in language.model.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], weight), name


def test_trainer_and_pipelines(tmp_path):
    """A classifier learns which of two letters a text begins with, and comes back through `pipeline`."""
    tokenizer = byte_tokenizer()
    texts = [f"{'ab'[i % 2]}{'xyz'[i % 3] * (i % 5 + 1)}" for i in range(32)]
    data = [{**tokenizer(x), "labels": i % 2} for i, x in enumerate(texts)]
    torch.manual_seed(0)
    model = TitansForSequenceClassification(TitansConfig(variant="lmm", **SIZES, num_labels=2))
    arguments = TrainingArguments(str(tmp_path / "run"), report_to=[], disable_tqdm=True, use_cpu=True, max_steps=60,
                                  learning_rate=1e-2, per_device_train_batch_size=8)  # fmt: skip
    Trainer(model, arguments, train_dataset=data, processing_class=tokenizer).train()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    classify = pipeline("text-classification", model=str(tmp_path / "model"), device="cpu")
    found = classify(texts[:6], batch_size=3)
    assert [x["label"] for x in found] == ["LABEL_0", "LABEL_1"] * 3
    features = pipeline("feature-extraction", model=str(tmp_path / "model"), device="cpu")("axx")
    with torch.no_grad():
        expected = model.eval().model(**tokenizer("axx", return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(torch.tensor(features), expected, atol=1e-5, rtol=1e-5)
