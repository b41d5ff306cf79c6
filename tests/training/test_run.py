"""Training resumes exactly: after Ctrl-C, after a crash, from a torn checkpoint; and refuses what it cannot."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from titans.data import PieceDataset
from titans.errors import TitansError
from titans.models.configuration import VARIANTS
from titans.training.checkpoints import last_intact_checkpoint
from titans.training.recipe import parse_recipe
from titans.training.run import build_model, train, training_arguments


def run(recipe):
    return train(recipe, report=lambda line: None)


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same(one, other):
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_training_leaves_a_model_folder(whole):
    assert whole.steps == 8
    assert sorted(whole.losses) == list(range(1, 9))
    assert whole.losses[8] < whole.losses[1]
    from titans.training.pretrained import load_model

    model = load_model(str(whole.folder))
    assert model.config.use_cache
    assert model.config.vocab_size == 259
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (256, 257, 258)
    assert model(torch.tensor([[1, 2]])).cache is not None
    assert not list(whole.folder.glob("*.bin"))  # nothing pickled beside the model
    again = yaml.safe_load((whole.folder / "recipe.yaml").read_text())
    assert parse_recipe(again, default_output_dir="x").training["max_steps"] == 8


def test_resume_equals_uninterrupted(finished, whole, make_recipe, caplog):
    shutil.rmtree(whole.folder / "checkpoint-8")
    (whole.folder / "model.safetensors").unlink()
    assert (whole.folder / "checkpoint-6" / "memory_state_0.safetensors").exists()
    with caplog.at_level("WARNING", "transformers"):
        resumed = run(make_recipe("whole"))
    assert resumed.losses == finished.losses
    assert_same(finished.folder, resumed.folder)
    assert "missing keys" not in caplog.text


def test_the_carried_state_matters(finished, whole, make_recipe):
    shutil.rmtree(whole.folder / "checkpoint-8")
    checkpoint = whole.folder / "checkpoint-6"
    (checkpoint / "memory_state_0.safetensors").unlink()
    sizes = json.loads((checkpoint / "complete.json").read_text())
    del sizes["memory_state_0.safetensors"]
    (checkpoint / "complete.json").write_text(json.dumps(sizes))
    assert run(make_recipe("whole")).losses[7] != finished.losses[7]


@pytest.mark.parametrize("damage", ["cut", "missing", "unsealed", "torn manifest"])
def test_a_torn_checkpoint_is_skipped(finished, whole, make_recipe, damage):
    torn = whole.folder / "checkpoint-8"
    assert last_intact_checkpoint(whole.folder) == torn
    match damage:
        case "cut":
            (torn / "optimizer.pt").write_bytes((torn / "optimizer.pt").read_bytes()[:-1])
        case "missing":
            (torn / "trainer_state.json").unlink()
        case "unsealed":
            (torn / "complete.json").unlink()
        case "torn manifest":
            (torn / "complete.json").write_text('{"optimizer.pt": 1')
    assert last_intact_checkpoint(whole.folder) == whole.folder / "checkpoint-6"
    again = run(make_recipe("whole"))
    assert again.losses == finished.losses
    assert_same(again.folder, finished.folder)
    assert last_intact_checkpoint(whole.folder) == torn


@pytest.fixture
def ctrl_c():
    """What Ctrl-C does to a program in the foreground, even where these tests run in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_interrupt_saves_and_resumes_exactly(finished, make_recipe, monkeypatch):
    original = PieceDataset.__getitem__

    def interrupted(self, index):
        if index == 4:  # a batch of step 3
            signal.raise_signal(signal.SIGINT)
        return original(self, index)

    monkeypatch.setattr(PieceDataset, "__getitem__", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"the same command resumes from .*checkpoint-3"):
        run(make_recipe("stopped"))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    resumed = run(make_recipe("stopped"))
    assert resumed.losses == finished.losses
    assert_same(finished.folder, resumed.folder)


@pytest.mark.usefixtures("ctrl_c")
def test_second_interrupt_stops_at_once(make_recipe, monkeypatch):
    def interrupted(self, index):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(PieceDataset, "__getitem__", interrupted)
    with pytest.raises(KeyboardInterrupt, match="before the first checkpoint"):
        run(make_recipe())


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_an_ignored_interrupt_stays_ignored(finished, make_recipe, monkeypatch):
    """In the background of a script Ctrl-C is meant for others."""
    original = PieceDataset.__getitem__

    def interrupted(self, index):
        signal.raise_signal(signal.SIGINT)
        return original(self, index)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr(PieceDataset, "__getitem__", interrupted)
    assert run(make_recipe()).losses == finished.losses
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_finished_training_is_saved_again_and_can_be_extended(finished, whole, make_recipe):
    (whole.folder / "model.safetensors").unlink()
    lines = []
    again = train(make_recipe("whole"), report=lines.append)
    assert any("training.max_steps sets a later one" in line for line in lines)
    assert (again.losses, again.steps) == (whole.losses, 8)
    assert_same(whole.folder, finished.folder)
    longer = run(make_recipe("whole", training__max_steps=10))
    assert (longer.steps, longer.losses[8]) == (10, whole.losses[8])


@pytest.mark.slow
def test_old_checkpoints_are_deleted_only_after_the_new_is_whole(make_recipe, monkeypatch):
    def failing(checkpoint):
        if checkpoint.name == "checkpoint-3":
            raise RuntimeError("the disk is full")
        original(checkpoint)

    from titans.training import trainer

    original = trainer.seal
    monkeypatch.setattr(trainer, "seal", failing)
    recipe = make_recipe(training__save_steps=1, training__save_total_limit=1)
    with pytest.raises(RuntimeError, match="disk is full"):
        run(recipe)
    folder = last_intact_checkpoint(trainer.Path(recipe.training["output_dir"]))
    assert folder.name == "checkpoint-2"
    monkeypatch.undo()
    result = run(recipe)
    assert [path.name for path in result.folder.glob("checkpoint-*")] == ["checkpoint-8"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__hidden_size": 32}, r"another experiment \(model.hidden_size was 16, now it is 32\)"),
        ({"data__sequence_length": 6}, r"\(data.sequence_length was 12, now it is 6\)"),
        ({"training__per_device_train_batch_size": 3}, r"\(training.per_device_train_batch_size was 2, now it is 3\)"),
    ],
)
def test_another_experiment_in_the_same_folder_is_refused(whole, make_recipe, changes, message):
    with pytest.raises(TitansError, match=message):
        run(make_recipe("whole", **changes))


def test_changed_data_is_refused(make_recipe, tmp_path):
    (tmp_path / "text.txt").write_text("some text to begin with")
    recipe = make_recipe(data__train=str(tmp_path / "text.txt"), training__max_steps=1)
    run(recipe)
    (tmp_path / "text.txt").write_text("another text to go on with")
    with pytest.raises(TitansError, match="the data or the tokenizer changed"):
        run(recipe)


@pytest.mark.slow
def test_a_recipe_can_ask_for_a_price_pieces_and_closed_gates(finished, make_recipe, shared_corpus):
    """The price counts from the middle of the training on, pieces change gradients, closed gates evaluation alone."""
    evaluation = str(shared_corpus / "a.txt")
    plain, priced, pieces, closed = (
        run(make_recipe(name, data__evaluation=evaluation, training__save_steps=8, **changes))
        for name, changes in {
            "plain": {},
            "priced": {"training__write_cost": 2.0},
            "pieces": {"training__piece_length": 5},
            "closed": {"model__memory": {"chunk_size": 16, "gate_floor": 0.9}},
        }.items()
    )
    assert [priced.losses[step] == plain.losses[step] for step in (1, 2, 3, 4)] == [True] * 4
    assert priced.losses[5] > plain.losses[5] + 1.0
    assert pieces.losses[1] == pytest.approx(plain.losses[1], rel=1e-5)
    assert pieces.losses[8] != plain.losses[8]
    assert closed.losses == plain.losses == finished.losses
    assert closed.evaluations[8] != plain.evaluations[8]


@pytest.mark.slow
def test_resuming_with_a_price_and_pieces_equals_uninterrupted(make_recipe):
    changes = {"training__write_cost": 2.0, "training__piece_length": 5}
    whole, other = (run(make_recipe(name, **changes)) for name in ("whole", "other"))
    shutil.rmtree(other.folder / "checkpoint-8")
    resumed = run(make_recipe("other", **changes))
    assert resumed.losses == whole.losses
    assert_same(whole.folder, resumed.folder)


def test_evaluation_runs_with_every_checkpoint(make_recipe, shared_corpus):
    result = run(make_recipe(data__evaluation=str(shared_corpus / "a.txt")))
    assert sorted(result.evaluations) == [3, 6, 8]
    assert result.evaluations[8] < result.evaluations[3]


def test_a_pretrained_model_goes_on_with_its_tokenizer(whole, make_recipe):
    recipe = make_recipe("tuned", training__max_steps=1, training__learning_rate=0.0)
    recipe = type(recipe)(str(whole.folder), recipe.data, None, recipe.training)
    assert_same(run(recipe).folder, whole.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__vocab_size": 100}, r"the tokenizer is larger than the model's vocabulary: its ids reach 258"),
        ({"model__num_attention_heads": 3}, r"the model section does not work: .*hidden_size=16"),
        ({"model__variant": "nonsense"}, r"the model section does not work: .*nonsense"),
        ({"training__lr_scheduler_type": "nonsense"}, r"the training section does not work: nonsense is not a valid"),
        ({"training__eval_strategy": "steps"}, r"there is no data.evaluation"),
        ({"data__train": "nowhere.txt"}, r'"nowhere.txt" does not exist'),
    ],
)
def test_what_cannot_work_is_one_sentence(make_recipe, changes, message):
    with pytest.raises(TitansError, match=message):
        run(make_recipe(**changes))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("per_device_train_batch_size", 0, "per_device_train_batch_size is 0, expected at least 1"),
        ("per_device_train_batch_size", -2, "per_device_train_batch_size is -2"),
        ("per_device_eval_batch_size", 0, "per_device_eval_batch_size is 0"),
        ("gradient_accumulation_steps", 0, "gradient_accumulation_steps is 0"),
        ("learning_rate", -1.0, "learning_rate is -1.0, expected at least 0"),
        ("learning_rate", float("nan"), "learning_rate is nan"),
        ("dataloader_num_workers", -1, "dataloader_num_workers is -1"),
        ("weight_decay", -0.1, "weight_decay is -0.1"),
        ("write_cost", -1.0, "training.write_cost is -1.0, expected 0 or more"),
        ("piece_length", 0, "training.piece_length is 0, expected at least 1"),
        ("adam_beta1", 2.0, r"cannot go on \(Invalid beta parameter"),
        ("report_to", "comet_ml", "training cannot be set up as the training section says: .*comet"),
    ],
)
def test_training_values_that_cannot_work_are_one_sentence(make_recipe, key, value, message):
    with pytest.raises(TitansError, match=message):
        run(make_recipe(**{f"training__{key}": value}))


def test_weights_that_the_last_step_ruined_are_not_saved(make_recipe, tmp_path):
    recipe = make_recipe(training__learning_rate=1e39, training__max_steps=1, training__save_strategy="no")
    with pytest.raises(TitansError, match=r"training diverged .*\(the last step left weights that are not finite\)"):
        run(recipe)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("carry_state", [True, False])
def test_another_number_of_processes_is_refused(make_recipe, monkeypatch, carry_state):
    """It would read some documents twice and leave others out."""
    recipe = make_recipe(training__max_steps=1, data__carry_state=carry_state)
    folder = run(recipe).folder
    order = folder / "checkpoint-1" / "data_order.json"
    two = json.loads(order.read_text()) | {"rows": 4, "processes": 2}
    order.write_text(json.dumps(two))
    monkeypatch.setattr("transformers.Trainer.train", lambda *args, **kwargs: pytest.fail("went on"))
    sizes = json.loads((folder / "checkpoint-1" / "complete.json").read_text())
    sizes["data_order.json"] = order.stat().st_size
    (folder / "checkpoint-1" / "complete.json").write_text(json.dumps(sizes))
    recipe = make_recipe(training__max_steps=2, data__carry_state=carry_state)
    with pytest.raises(TitansError, match=r"another order \(rows was 4, now it is 2\) and cannot be resumed"):
        run(recipe)


RECIPE = """
model: {{variant: {variant}, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, segment_length: 8}}
data: {{train: {text}, sequence_length: 16}}
training: {{output_dir: {out}, max_steps: 4, per_device_train_batch_size: 2, save_steps: 2, use_cpu: true,
            write_cost: 0.5, piece_length: 6,
            report_to: none, disable_tqdm: true, logging_steps: 1}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["mac", "rmt"])
def test_two_processes_resume_exactly(tmp_path, variant):
    """By torchrun on the CPU, whose processes call it cpu:0."""
    text, recipe, out = tmp_path / "text.txt", tmp_path / "recipe.yaml", tmp_path / "out"
    text.write_text("some text that is read again and again, " * 20)
    recipe.write_text(RECIPE.format(variant=variant, text=text, out=out))

    def torchrun(processes):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [*command, "-m", "titans.cli", "train", str(recipe)], env=environment, capture_output=True, text=True
        )

    done = torchrun(2)
    assert done.returncode == 0, done.stderr
    shutil.copytree(out, tmp_path / "unstopped")
    shutil.rmtree(out / "checkpoint-4")
    again = torchrun(2)
    assert again.returncode == 0, again.stderr
    assert "resuming from" in again.stdout
    assert_same(tmp_path / "unstopped", out)
    assert_same(tmp_path / "unstopped" / "checkpoint-4", out / "checkpoint-4")
    shutil.rmtree(out / "checkpoint-4")
    other = torchrun(1)
    assert "rows was 4, now it is 2" in other.stderr


def test_a_failed_write_of_the_recipe_leaves_the_old_one(whole, make_recipe, monkeypatch):
    before = (whole.folder / "recipe.yaml").read_text()

    def fail(descriptor):
        raise OSError("no space")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        run(make_recipe("whole", training__max_steps=9))
    assert (whole.folder / "recipe.yaml").read_text() == before


def test_a_single_byte_without_bos_is_no_data(make_recipe, tmp_path):
    from transformers import PreTrainedTokenizerFast

    from titans.data import byte_tokenizer

    bare = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer().backend_tokenizer)
    bare.save_pretrained(tmp_path / "bare")
    (tmp_path / "one.txt").write_text("x")
    recipe = make_recipe(data__train=str(tmp_path / "one.txt"))
    recipe = type(recipe)(recipe.model, recipe.data, str(tmp_path / "bare"), recipe.training)
    with pytest.raises(TitansError, match="the data is empty"):
        run(recipe)


def test_defaults_fit_the_machine(make_recipe):
    args = training_arguments(make_recipe())
    gpu = torch.cuda.is_available()
    assert args.bf16 == (gpu and torch.cuda.is_bf16_supported())
    assert args.use_cpu == (not torch.accelerator.is_available())
    assert (args.save_total_limit, args.learning_rate, args.max_steps) == (2, 3e-3, 8)


def test_every_variant_can_be_built(make_recipe):
    from titans.data import byte_tokenizer

    for variant in VARIANTS:
        fields = dict(make_recipe().model) | {"variant": variant, "num_hidden_layers": 3}
        assert build_model(fields, byte_tokenizer()).config.variant == variant
