"""What StreamTrainer computes equals plain forward passes over whole documents."""

import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import Trainer

from titans import TitansConfig, TitansForCausalLM
from titans.data import IndexedDataset, PieceDataset
from titans.errors import TitansError
from titans.training.arguments import StreamTrainingArguments
from titans.training.checkpoints import load_carried_state, save_carried_state
from titans.training.trainer import StreamTrainer

VOCABULARY = 40


def make_model(variant="mac", **fields):
    torch.manual_seed(0)
    config = TitansConfig(
        variant=variant,
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        segment_length=8,
        sliding_window=8,
        memory={"chunk_size": 4},
        num_persistent_tokens=2,
        **fields,
    )
    return TitansForCausalLM(config)


def make_store(lengths=(40, 7, 26, 5, 61)):
    generator = torch.Generator().manual_seed(1)
    return IndexedDataset.from_lists([torch.randint(VOCABULARY, (n,), generator=generator).tolist() for n in lengths])


def make_trainer(model, dataset, folder, evaluation=None, **options):
    arguments = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
    }
    return StreamTrainer(model, StreamTrainingArguments(**arguments | options), dataset, evaluation)


def whole_document_losses(model, store, dataset):
    """Sum and count of the losses of each step, every part of a document read in one forward pass."""
    schedule = dataset.schedule(0)
    sums, counts = torch.zeros(len(schedule), dtype=torch.float64), torch.zeros(len(schedule), dtype=torch.int64)
    for row in range(schedule.document.shape[1]):
        steps = [s for s in range(len(schedule)) if schedule.document[s, row] >= 0]
        parts = []
        for step in sorted(steps, key=lambda s: (not schedule.streamed[s], s)):
            if schedule.reset[step, row]:
                parts.append([])
            parts[-1].append(step)
        for part in parts:
            document, first = schedule.document[part[0], row], schedule.start[part[0], row]
            last = schedule.start[part[-1], row] + dataset.sequence_length
            ids = torch.from_numpy(store.read(document, first, last + 1))
            with torch.no_grad():
                logits = model.eval()(ids[None, :-1]).logits[0]
            losses = F.cross_entropy(logits.double(), ids[1:], reduction="none")
            for step, piece in zip(part, losses.split(dataset.sequence_length), strict=True):
                sums[step] += piece.sum()
                counts[step] += len(piece)
    return sums, counts


@pytest.mark.parametrize("variant", ["lmm", "mac", "swa", "gated-deltanet"])
def test_loss_is_that_of_whole_documents(variant, tmp_path):
    model, store = make_model(variant), make_store()
    dataset = PieceDataset(store, 6, 2, carry_state=True)
    sums, counts = whole_document_losses(model, store, dataset)
    trainer = make_trainer(
        model, dataset, tmp_path, learning_rate=0.0, gradient_accumulation_steps=2, num_train_epochs=1
    )
    trainer.train()
    logged = torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    grouped = list(zip(sums.split(2), counts.split(2), strict=True))
    expected = torch.tensor([float(s.sum() / c.sum()) for s, c in grouped])
    assert len(logged) == trainer.total_steps() == math.ceil(len(dataset) / 2)
    torch.testing.assert_close(logged, expected, rtol=1e-5, atol=1e-5)


def test_without_carry_every_piece_starts_fresh(tmp_path):
    model, store = make_model(), make_store()
    dataset = PieceDataset(store, 6, 2, carry_state=False)
    trainer = make_trainer(model, dataset, tmp_path, learning_rate=0.0, max_steps=3)
    trainer.train()
    assert trainer.carried is None
    for step, entry in enumerate(trainer.state.log_history[:3]):
        batch = dataset[step]
        with torch.no_grad():
            logits = model.eval()(batch["input_ids"], batch.get("attention_mask")).logits
        expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        assert entry["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_gradient_is_truncated_and_reaches_the_initial_memory(tmp_path):
    model, store = make_model(), make_store((50,))
    dataset = PieceDataset(store, 8, 1, carry_state=True)
    trainer = make_trainer(model, dataset, tmp_path, max_steps=1)
    first, second = (dataset[step] for step in range(2))
    trainer.compute_loss(model.train(), first, num_items_in_batch=8)
    assert not any(tensor.requires_grad for tensor in trainer.carried.tensors())
    carried = trainer.carried
    model.zero_grad()
    trainer.compute_loss(model, second, num_items_in_batch=8).backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    logits = model(second["input_ids"], cache=carried).logits
    F.cross_entropy(logits[0], second["labels"][0]).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(got[name], parameter.grad)
    trainer.carried = None
    model.zero_grad()
    trainer.compute_loss(model, first, num_items_in_batch=8).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("carry_state", [True, False])
def test_evaluation_is_exact_and_leaves_the_carried_state(carry_state, tmp_path):
    model, store = make_model(), make_store()
    dataset = PieceDataset(store, 6, 3, carry_state=carry_state)
    trainer = make_trainer(model, dataset, tmp_path, dataset, per_device_eval_batch_size=3)
    sentinel = model.initial_state(2).detach()
    trainer.carried = sentinel
    metrics = trainer.evaluate()
    sums, counts = whole_document_losses(model, store, dataset)
    expected = float(sums.sum() / counts.sum())
    assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert trainer.carried is sentinel


def test_epochs_read_in_different_orders_and_all_of_it(tmp_path):
    model, store = make_model("swa"), make_store()
    dataset = PieceDataset(store, 6, 2, carry_state=True)
    read = []
    original = dataset.__class__.__getitem__

    class Spy(PieceDataset):
        def __getitem__(self, index):
            read.append(index)
            return original(self, index)

    dataset.__class__ = Spy
    make_trainer(model, dataset, tmp_path, num_train_epochs=2, gradient_accumulation_steps=3).train()
    assert read == list(range(2 * len(dataset)))


def test_label_smoothing_is_applied(tmp_path):
    losses = []
    for smoothing in (0.0, 0.5):
        dataset = PieceDataset(make_store(), 6, 2, carry_state=False)
        trainer = make_trainer(
            make_model(), dataset, tmp_path, max_steps=1, learning_rate=0.0, label_smoothing_factor=smoothing
        )
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
    assert losses[0] != losses[1]


@pytest.mark.parametrize("variant", ["lmm", "mac", "transformer", "rmt", "gated-deltanet"])
def test_state_survives_saving(variant, tmp_path):
    model = make_model(variant).eval()
    ids = torch.randint(VOCABULARY, (3, 21))
    state = model(ids, use_cache=True).cache
    mixed = model.initial_state(3).detach().where(torch.tensor([True, False, True]), state)
    for i, saved in enumerate((state, mixed)):
        save_carried_state(tmp_path / f"{i}.safetensors", saved)
        loaded = load_carried_state(tmp_path / f"{i}.safetensors", model, 3)
        with torch.no_grad():
            assert torch.equal(model(ids, cache=loaded).logits, model(ids, cache=saved).logits)
    with pytest.raises(TitansError, match=r"is not one of 2 rows"):
        load_carried_state(tmp_path / "0.safetensors", model, 2)
    assert any("layers.0.0" in key for key in load_file(tmp_path / "0.safetensors"))


def test_the_last_whole_checkpoint_is_found_with_its_memory(tmp_path):
    dataset = PieceDataset(make_store((90,)), 6, 2, carry_state=True)
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}
    whole = make_trainer(make_model(), dataset, tmp_path, **options)
    with pytest.raises(TitansError, match="holds no whole checkpoint"):
        whole.train(resume_from_checkpoint=True)
    whole.train()
    (tmp_path / "checkpoint-5" / "complete.json").unlink()
    resumed = make_trainer(make_model(), dataset, tmp_path, **options)
    resumed.train(resume_from_checkpoint=True)
    losses = [[entry["loss"] for entry in t.state.log_history if "loss" in entry] for t in (whole, resumed)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("changes", "name"), [
    ({"rows": 4}, "rows was 2, now it is 4"),
    ({"seed": 1}, "seed was 0, now it is 1"),
    ({"sequence_length": 5}, "sequence_length was 6, now it is 5"),
    ({"carry_state": False}, "carry_state was True, now it is False"),
    ({"documents": make_store((40, 7))}, "documents was 5, now it is 2"),
])  # fmt: skip
def test_another_order_of_the_data_is_refused(tmp_path, changes, name):
    arguments = {"documents": make_store(), "sequence_length": 6, "rows": 2, "carry_state": True, "seed": 0}
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    make_trainer(make_model("swa"), PieceDataset(**arguments), tmp_path, **options).train()
    other = make_trainer(make_model("swa"), PieceDataset(**arguments | changes), tmp_path, **options)
    with pytest.raises(TitansError, match=name):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_a_checkpoint_that_does_not_tell_its_order_is_refused(tmp_path):
    dataset, options = PieceDataset(make_store(), 6, 2, carry_state=True), {"save_strategy": "steps", "save_steps": 1}
    make_trainer(make_model("swa"), dataset, tmp_path, max_steps=1, **options).train()
    checkpoint = tmp_path / "checkpoint-1"
    (checkpoint / "data_order.json").unlink()
    longer = make_trainer(make_model("swa"), dataset, tmp_path, max_steps=2, **options)
    with pytest.raises(TitansError, match=r"does not say in which order it read its data: choose another"):
        longer.train(resume_from_checkpoint=str(checkpoint))


def test_only_documented_methods_of_trainer_are_overridden():
    overridden = [name for name in vars(StreamTrainer) if hasattr(Trainer, name) and not name.startswith("__")]
    assert sorted(overridden) == [
        "compute_loss",
        "get_batch_samples",
        "get_eval_dataloader",
        "get_train_dataloader",
        "prediction_step",
        "save_model",
        "train",
        "training_step",
    ]
