"""Packed rows: each document is read as if it stood alone in its row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from titans.models.packing import packed_rows


def documents(*lengths):
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(1, 23, (n,), generator=generator) for n in lengths]


def positions(*lengths, start=0):
    return torch.cat([torch.arange(start, start + n) for n in lengths])


def boundaries(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


LENGTHS = (5, 1, 9, 2)
MARKS = {
    "position_ids": positions(*LENGTHS)[None],
    "position_ids from 3": positions(*LENGTHS, start=3)[None],
    "cu_seqlens": boundaries(*LENGTHS),
    "cu_seq_lens_q": boundaries(*LENGTHS),
    "cu_seq_lens_k": boundaries(*LENGTHS).tolist(),
    "seq_idx": torch.arange(4).repeat_interleave(torch.tensor(LENGTHS))[None].int(),
}


def loss_alone(model, texts):
    """Mean over all predicted tokens of the documents, each read alone."""
    losses = [model(x[None], labels=x[None]).loss * (len(x) - 1) for x in texts if len(x) > 1]
    return sum(losses) / sum(len(x) - 1 for x in texts)


@pytest.mark.parametrize("name", MARKS)
def test_every_mark_parts_the_documents(make_model, name):
    model, texts = make_model("lmm"), documents(*LENGTHS)
    out = model(torch.cat(texts)[None], **{name.split()[0]: MARKS[name]})
    expected = torch.cat([model(x[None]).logits for x in texts], 1)
    torch.testing.assert_close(out.logits, expected, atol=1e-11, rtol=0)
    assert out.cache is None


def test_every_model_reads_packed_rows(make_model, variant, close):
    model, texts = make_model(variant), documents(*LENGTHS)
    ids, ids_at = torch.cat(texts)[None], MARKS["position_ids"]
    out = model(ids, position_ids=ids_at, labels=ids, output_hidden_states=True)
    alone = [model(x[None], output_hidden_states=True) for x in texts]
    close(out.logits, torch.cat([x.logits for x in alone], 1), 1e-11)
    for layer, hidden in enumerate(out.hidden_states):
        close(hidden, torch.cat([x.hidden_states[layer] for x in alone], 1), 1e-11)
    close(out.loss, loss_alone(model, texts), 1e-6)  # transformers computes losses in float32


def test_gradients_are_those_of_documents_alone(make_model, variant, close):
    model, texts = make_model(variant), documents(*LENGTHS)
    weights = list(model.parameters())
    ids = torch.cat(texts)[None]
    packed = model(ids, position_ids=MARKS["position_ids"], labels=ids, use_cache=False).loss
    found = torch.autograd.grad(packed, weights, allow_unused=True)
    expected = torch.autograd.grad(loss_alone(model, texts), weights, allow_unused=True)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            close(a, b, 1e-6)  # as far as the loss is


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_padding_and_several_rows(make_model, data):
    """Rows hold documents of any lengths, padding before and behind each; what stands on padding counts for nothing."""
    model = make_model("mac")
    rows = data.draw(st.lists(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=3),
                              min_size=1, max_size=3))  # fmt: skip
    width = max(sum(n + gap for n, gap in row) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask, at, texts = torch.zeros_like(ids), torch.zeros_like(ids), []
    for r, row in enumerate(rows):
        place = 0
        for (n, gap), x in zip(row, documents(*(n for n, _ in row)), strict=True):
            place += gap
            where = (r, slice(place, place + n))
            ids[where], mask[where], at[where] = x, 1, torch.arange(n)
            texts.append((where, x))
            place += n
    out = model(ids, attention_mask=mask, position_ids=at)
    for where, x in texts:
        torch.testing.assert_close(out.logits[where], model(x[None]).logits[0], atol=1e-11, rtol=0)


def test_one_document_in_each_row_stays_a_stream(make_model):
    model, (x,) = make_model("mac"), documents(7)
    out = model(x[None], position_ids=torch.arange(7)[None], seq_idx=torch.zeros(1, 7).int(), cu_seqlens=[0, 7])
    assert out.cache.tokens == 7


@pytest.mark.parametrize(("marks", "match"), [
    ({"position_ids": torch.tensor([[0, 1, 2, 4, 5, 6]])}, "must rise by one"),
    ({"position_ids": torch.tensor([[0, 1, 2, 1, 2, 3]])}, "restart where a document starts"),
    ({"position_ids": torch.zeros(1, 5).long()}, "position_ids has shape"),
    ({"seq_idx": torch.zeros(6).int()}, "seq_idx has shape"),
    ({"cu_seqlens": torch.tensor([0, 3, 5])}, "cu_seqlens must rise from 0 to the 6 tokens"),
    ({"cu_seqlens": torch.tensor([0, 3, 3, 6])}, "cu_seqlens must rise"),
    ({"cu_seq_lens_q": torch.tensor([1, 6])}, "cu_seq_lens_q must rise"),
])  # fmt: skip
def test_marks_that_do_not_fit(make_model, marks, match):
    with pytest.raises(ValueError, match=match):
        make_model("lmm")(torch.ones(1, 6).long(), **marks)


def test_packed_rows_take_and_hand_out_no_state(make_model):
    model, ids = make_model("lmm"), torch.ones(1, 6).long()
    state = model(ids).cache
    for arguments in ({"cache": state}, {"use_cache": True}):
        with pytest.raises(ValueError, match="neither take nor hand out a state"):
            model(ids, position_ids=positions(3, 3)[None], **arguments)


def test_documents_of_similar_length_share_a_pass():
    packed = packed_rows(positions(3, 4, 16, 1)[None], None, torch.Size((1, 24)), {})
    shapes = []
    packed.read(lambda x, mask: (shapes.append(tuple(x.shape)), (x,))[1], torch.randn(1, 24, 2))
    assert shapes == [(1, 1, 2), (2, 4, 2), (1, 16, 2)]


@pytest.mark.parametrize("options", [{}, {"return_flash_attn_kwargs": True, "return_seq_idx": True}])
def test_trainer_trains_on_flattened_rows(make_model, tmp_path, options):
    """The loss of a step is that of the documents alone."""
    model, texts = make_model("lmm", torch.float32), documents(3, 5)
    with torch.no_grad():
        expected = loss_alone(model, texts)
    arguments = TrainingArguments(str(tmp_path), report_to=[], disable_tqdm=True, use_cpu=True, max_steps=1,
                                  per_device_train_batch_size=2, logging_steps=1)  # fmt: skip
    data = [{"input_ids": x.tolist()} for x in texts]
    trainer = Trainer(model, arguments, data_collator=DataCollatorWithFlattening(**options), train_dataset=data)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected.item(), abs=1e-4)
