"""What callers pass beside the tokens: masks and positions, switches of Hugging Face followed."""

import copy

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from titans import TitansForCausalLM, TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig


def text(batch, count, seed=0):
    return torch.randint(1, 23, (batch, count), generator=torch.Generator().manual_seed(seed))


# Masks and positions -----------------------------------------------------------------------------------------

PADDED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 1, 1, 1, 0]])


@pytest.mark.parametrize("mask", [
    torch.tensor([[1, 1, 1, 1, 1, 2, 2, 2, 2, 2]] * 2),
    torch.where(PADDED == 1, 0.0, -torch.inf),  # to be added to scores
])  # fmt: skip
def test_masks_of_other_numbers_are_refused(make_model, variant, mask):
    model = make_model(variant)
    for part in (model, model.model):
        with pytest.raises(ValueError, match="would be read as one"):
            part(text(2, 10), attention_mask=mask)


@pytest.mark.parametrize("extra", [
    {"position_ids": torch.arange(10).unsqueeze(0)},
    {"position_ids": 7 + torch.arange(10).expand(2, -1)},
    {"position_ids": (PADDED.cumsum(1) - 1).clamp(min=0), "attention_mask": PADDED},
    {"position_ids": (PADDED.cumsum(1) - 1).masked_fill(PADDED == 0, 1), "attention_mask": PADDED},
    {"position_ids": torch.arange(10).unsqueeze(0), "attention_mask": PADDED},
    {"attention_mask": PADDED.bool()},
    {"attention_mask": PADDED.float()},
    {"seq_idx": None},
])  # fmt: skip
def test_positions_that_count_up_change_nothing(make_model, variant, extra):
    model, ids = make_model(variant), text(2, 10)
    mask = extra.get("attention_mask")
    expected = model(ids, attention_mask=None if mask is None else mask.long()).logits
    assert torch.equal(model(ids, **extra).logits, expected)


@pytest.mark.parametrize("shape", [(10,), (2, 9), (3, 10), (2, 10, 1)])
def test_bad_positions(make_model, shape):
    with pytest.raises(ValueError, match="position_ids has shape"):
        make_model("lmm")(text(2, 10), position_ids=torch.zeros(shape, dtype=torch.long))


def test_compiled_graphs_refuse_when_they_run(make_model):
    model, ids = make_model("swa", num_hidden_layers=1), text(2, 6)
    positions, mask = torch.arange(6).unsqueeze(0), torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        program = torch.export.export(
            model, (ids,), {"position_ids": positions, "attention_mask": mask, "use_cache": False}
        ).module()
        expected = model(ids, attention_mask=mask).logits
        found = program(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
        torch.testing.assert_close(found[mask.bool()], expected[mask.bool()])
        with pytest.raises(RuntimeError, match="a compiled graph reads one document"):
            program(ids, position_ids=positions % 3, attention_mask=mask, use_cache=False)
        with pytest.raises(RuntimeError, match="would be read as one"):
            program(ids, position_ids=positions, attention_mask=2 * mask, use_cache=False)


# Trainer -----------------------------------------------------------------------------------------------------


def trainer(model, folder, **options):
    arguments = {"report_to": [], "disable_tqdm": True, "per_device_eval_batch_size": 2, "use_cpu": True}
    extra = {key: options.pop(key) for key in ("data_collator", "compute_metrics", "train_dataset") if key in options}
    return Trainer(model, TrainingArguments(str(folder), **arguments, **options), **extra)


def collate(rows):
    """Pad on the right, as `DataCollatorWithPadding` does for a tokenizer."""
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    mask = pad_sequence([torch.ones_like(x) for x in ids], True)
    return {
        "input_ids": pad_sequence(ids, True),
        "attention_mask": mask,
        "labels": pad_sequence(ids, True).masked_fill(mask == 0, -100),
    }


def llama():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return LlamaForCausalLM(LlamaConfig(vocab_size=23, **sizes)).eval()


def test_trainer_evaluates_and_predicts(make_model, variant, tmp_path):
    model = make_model(variant, torch.float32)
    data = [{"input_ids": text(1, n, n)[0].tolist()} for n in (3, 5, 6, 2, 4)]  # three batches, each of its length
    seen = []

    def metrics(found):
        seen.append(found)
        return {"rows": len(found.predictions)}

    options = {"data_collator": collate, "compute_metrics": metrics, "include_for_metrics": ["inputs", "loss"]}
    found = trainer(model, tmp_path, **options).predict(data)
    twin = trainer(llama(), tmp_path, data_collator=collate).predict(data)
    assert found.predictions.shape == twin.predictions.shape == (5, 6, 23)
    assert (found.label_ids == twin.label_ids).all()
    assert found.metrics["test_rows"] == 5
    losses = []
    for start in (0, 2, 4):
        batch = collate(data[start : start + 2])
        with torch.no_grad():
            out = model(**batch)
        losses += [out.loss.item()] * len(out.logits)
        for row, logits in enumerate(out.logits):
            torch.testing.assert_close(torch.tensor(found.predictions[start + row, : len(logits)]), logits)
    assert found.metrics["test_loss"] == pytest.approx(sum(losses) / 5, rel=1e-5)
    assert seen[0].inputs.shape == (5, 6)
    evaluated = trainer(model, tmp_path, data_collator=collate, prediction_loss_only=True).evaluate(data)
    assert evaluated["eval_loss"] == pytest.approx(found.metrics["test_loss"], rel=1e-5)


FORECASTING = {
    "context_length": 12,
    "horizon": 3,
    "hidden_size": 8,
    "intermediate_size": 8,
    "patch_length": 4,
    "patch_stride": 4,
}


def test_trainer_forecasts(tmp_path):
    model = TitansForForecasting(TitansForecastingConfig(**FORECASTING, quantiles=[0.1, 0.5])).eval()
    values = torch.randn(5, 15, 2, generator=torch.Generator().manual_seed(0))
    data = [{"past_values": x[:12], "future_values": x[12:]} for x in values]
    found = trainer(model, tmp_path, label_names=["future_values"]).predict(data)
    with torch.no_grad():
        expected = model(values[:, :12], values[:, 12:])
    prediction, quantiles = found.predictions
    torch.testing.assert_close(torch.tensor(prediction), expected.prediction)
    torch.testing.assert_close(torch.tensor(quantiles), expected.quantiles)
    assert (torch.tensor(found.label_ids) == values[:, 12:]).all()
    assert found.metrics["test_loss"] == pytest.approx(expected.loss.item(), rel=1e-5)


# What is put out ----------------------------------------------------------------------------------------------


def blocks_by_hand(model, ids):
    """Embeddings, what each block puts out, the last normalised."""
    states = [model.model.embed_tokens(ids)]
    for layer in model.model.layers:
        states.append(layer(states[-1], None, None)[0])
    return (*states[:-1], model.model.norm(states[-1]))


def test_hidden_states(make_model, variant, close):
    model, ids = make_model(variant), text(2, 11)
    out = model(ids, output_hidden_states=True)
    assert model(ids).hidden_states is None
    assert torch.equal(out.logits, model(ids).logits)
    assert torch.equal(out.hidden_states[-1], model.model(ids).last_hidden_state)
    assert torch.equal(out.hidden_states[0], model.model.embed_tokens(ids))
    if variant != "rmt":  # its blocks see more than the tokens
        close(out.hidden_states, blocks_by_hand(model, ids), 1e-12)
    streamed, state = [], None
    for piece in ids.split(3, 1):  # segments end within pieces
        part = model.model(piece, cache=state, output_hidden_states=True)
        streamed.append(part.hidden_states)
        state = part.cache
    close(tuple(torch.cat(parts, 1) for parts in zip(*streamed, strict=True)), out.hidden_states, 1e-10)


def test_switches_of_the_configuration(make_model):
    model, ids = copy.deepcopy(make_model("lmm")), text(2, 5)
    model.config.output_hidden_states = True
    assert len(model(ids).hidden_states) == 3
    assert model(ids, output_hidden_states=False).hidden_states is None
    model.config.output_hidden_states, model.config.return_dict = False, False
    logits, state = model(ids)
    assert torch.equal(logits, make_model("lmm")(ids).logits)
    assert state.tokens == 5
    model.set_attn_implementation("eager")  # transformers lets the configuration ask for attentions with this one only
    model.config.output_attentions = True
    with pytest.raises(ValueError, match="output_attentions=True cannot be followed"):
        model(ids)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attention_implementations_are_accepted(make_model, tmp_path, implementation):
    model, ids = make_model("mac"), text(2, 9)
    model.save_pretrained(tmp_path)
    again = TitansForCausalLM.from_pretrained(tmp_path, attn_implementation=implementation)
    torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_tuples_and_attentions(make_model, variant):
    model, ids = make_model(variant), text(2, 5)
    out = model(ids, labels=ids, output_hidden_states=True)
    found = model(ids, labels=ids, output_hidden_states=True, return_dict=False)
    twin = llama()(ids, labels=ids, output_hidden_states=True, return_dict=False, use_cache=True)
    assert [type(x) for x in twin] == [type(found[0]), type(found[1]), DynamicCache, type(found[3])]
    assert found[2].tokens == 5
    assert torch.equal(found[0], out.loss)
    assert torch.equal(found[1], out.logits)
    assert all(torch.equal(a, b) for a, b in zip(found[3], out.hidden_states, strict=True))
    (hidden,) = model.model(ids, use_cache=False, return_dict=False)
    assert torch.equal(hidden, out.hidden_states[-1])
    for part in (model, model.model):
        with pytest.raises(ValueError, match="output_attentions=True cannot be followed"):
            part(ids, output_attentions=True)
    with pytest.raises(ValueError, match=r"output_hidden_states=\[0\] must be True or False"):
        model(ids, output_hidden_states=[0])


def test_forecasting_follows_the_switches(close):
    model = TitansForForecasting(TitansForecastingConfig(**FORECASTING, num_hidden_layers=2)).eval()
    past = torch.randn(2, 12, 1, generator=torch.Generator().manual_seed(0))
    expected = model(past)
    entered = []
    with model.layers[0].register_forward_pre_hook(lambda block, inputs: entered.append(inputs[0])):
        out = model(past, output_hidden_states=True)
    assert [x.shape for x in out.hidden_states] == [entered[0].shape] * 3
    close(out.hidden_states[0], entered[0], 1e-7)
    prediction, _ = model(past, return_dict=False)
    assert torch.equal(prediction, expected.prediction)
    with pytest.raises(ValueError, match="output_attentions=True cannot be followed"):
        model(past, output_attentions=True)


# Reentrant checkpointing -------------------------------------------------------------------------------------


def test_reentrant_checkpointing_refuses_gradients_through_a_state(make_model, variant, close):
    model, ids = copy.deepcopy(make_model(variant)).train(), text(2, 9)
    state = model(ids[:, :4], use_cache=True).cache

    def gradients(state):
        model.zero_grad()
        model(ids[:, 4:], cache=state, labels=ids[:, 4:]).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients(state.detach())
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
    model.enable_input_require_grads()
    with pytest.raises(ValueError, match="use_reentrant=True drops the gradients"):
        gradients(state)
    with pytest.raises(ValueError, match="use_reentrant=True drops the gradients"):
        model(ids, use_cache=True)
    close(gradients(state.detach()), expected, 1e-11)
    with torch.no_grad():
        model(ids, use_cache=True)
