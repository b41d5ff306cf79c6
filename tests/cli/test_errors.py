"""What a user can correct is one clear sentence on stderr and exit status 2."""

import io
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file

from titans import TitansForCausalLM
from titans.cli import main
from titans.data import load_tokenizer
from titans.training.pretrained import load_config

RECIPE = "model: {variant: swa, hidden_size: 16, num_attention_heads: 2}\ndata: {train: %s}\n"


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "text.txt").write_text("some text")
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE % (tmp_path / "text.txt"))
    return path


def refused(titans, *arguments):
    result = titans(*arguments, status=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.max_step=3", 'did you mean "training.max_steps"?'),
        ("model.vocab_size=100", "the tokenizer is larger than the model's vocabulary"),
        ("model.hidden_size=15", "hidden_size=15"),
        ("model.memory.chunk_size=0", "memory: chunk_size=0"),
        ("model.sliding_window=-1", "sliding_window"),
        ("data.train=missing.txt", '"missing.txt" does not exist'),
        ("tokenizer=nowhere/at/all", 'cannot load the tokenizer "nowhere/at/all"'),
        ("training.report_to=nonsense", "nonsense"),
        ("training.seed=-1", "training.seed is -1, expected a whole number from 0 to 4294967295"),
        ("training.data_seed=4294967296", "training.data_seed is 4294967296, expected a whole number from 0 to 429"),
        ("model=nowhere/at/all", 'there is no model folder "nowhere/at/all"'),
    ],
)
def test_bad_recipes(titans, recipe, tmp_path, override, sentence):
    assert sentence in refused(titans, "train", recipe, f"training.output_dir={tmp_path / 'out'}", override)


def test_bad_data(titans, recipe, tmp_path):
    out = f"training.output_dir={tmp_path / 'out'}"
    (tmp_path / "bad.txt").write_bytes(b"abc\xff")
    assert "bad.txt is not UTF-8 text (byte 3)" in refused(
        titans, "train", recipe, out, f"data.train={tmp_path / 'bad.txt'}"
    )
    (tmp_path / "empty.txt").touch()
    assert "holds no text" in refused(titans, "train", recipe, out, f"data.train={tmp_path / 'empty.txt'}")


def test_missing_recipe(titans):
    assert "cannot read the recipe nowhere.yaml" in refused(titans, "train", "nowhere.yaml")


def test_output_dir_that_is_a_file(titans, recipe, tmp_path):
    assert "text.txt" in refused(titans, "train", recipe, f"training.output_dir={tmp_path / 'text.txt'}")


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("info",), ("evaluate", "perplexity")])
def test_no_model(titans, tmp_path, command):
    (tmp_path / "text.txt").write_text("x")
    data = [tmp_path / "text.txt"] if command[0] == "evaluate" else []
    name, *options = command
    rest = [*options[:1], tmp_path / "gone", *options[1:]] if name == "evaluate" else [tmp_path / "gone", *options]
    assert "there is no model folder" in refused(titans, name, *rest, *data)
    rest = [tmp_path if argument == tmp_path / "gone" else argument for argument in rest]
    assert "holds no model" in refused(titans, name, *rest, *data)


READERS = {  # commands that read a text with a model: how each is given both
    "inspect": lambda model, file: ("inspect", model, "--file", file),
    "generate": lambda model, file: ("generate", model, "--file", file),
    "perplexity": lambda model, file: ("evaluate", "perplexity", model, file),
    "calibrate": lambda model, file: ("calibrate", model, file),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_refuse_alike(titans, model_folder, tmp_path, reader):
    (tmp_path / "text.txt").write_text("text " * 200)
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    files = {name: tmp_path / name for name in ("text.txt", "bad.txt", "gone")}
    command, text = READERS[reader], files["text.txt"]
    assert "there is no model folder" in refused(titans, *command(files["gone"], text))
    assert "holds no model" in refused(titans, *command(tmp_path, text))
    assert "bad.txt is not UTF-8 text (byte 2)" in refused(titans, *command(model_folder, files["bad.txt"]))
    assert "gone" in refused(titans, *command(model_folder, files["gone"]))
    if reader != "calibrate":
        gated = ("--write", "gated")
        assert "there is no model folder" in refused(titans, *command(files["gone"], text), *gated)
        assert "make one with titans calibrate" in refused(titans, *command(model_folder, text), *gated)
        assert "write='often' is unknown" in refused(titans, *command(model_folder, text), "--write", "often")


def test_damaged_models(titans, model_folder, tmp_path):
    def copy(name):
        return shutil.copytree(model_folder, tmp_path / name)

    cut = copy("cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-100])
    assert "cannot load the weights" in refused(titans, "generate", cut, "--prompt", "x")
    none = copy("none")
    (none / "model.safetensors").unlink()
    assert "cannot load the weights" in refused(titans, "generate", none, "--prompt", "x")
    config = copy("config")
    (config / "config.json").write_text("{")
    assert "cannot load the model" in refused(titans, "info", config)
    other = copy("other")
    (other / "config.json").write_text('{"model_type": "gpt2"}')
    assert "is a gpt2 model, expected a Titans model" in refused(titans, "info", other)


def test_values_that_transformers_refuses(titans, model_folder, recipe, monkeypatch):
    def refuse(self, **fields):
        raise StrictDataclassError("Validation error for field 'x':\n    TypeError: expected float, got str")

    monkeypatch.setattr("titans.models.configuration.TitansConfig.__init__", refuse)
    for command in (("info", model_folder), ("train", recipe)):
        assert "field 'x': TypeError: expected float" in refused(titans, *command)


def rewrite(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def grow(weights):
    name = next(iter(weights))
    weights[name] = torch.cat([weights[name], weights[name]])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "lack model.norm.weight (1 such)"),
        (lambda weights: weights.update(extra=torch.ones(1)), "hold an unknown extra (1 such)"),
        (grow, "cannot load the weights"),
    ],
)
def test_weights_of_another_model(titans, model_folder, tmp_path, change, sentence):
    folder = shutil.copytree(model_folder, tmp_path / "changed")
    rewrite(folder, change)
    result = titans("generate", folder, "--prompt", "x", status=2)
    assert sentence in result.stderr.splitlines()[-1]  # transformers may have warned before
    assert result.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize("variant", ["mac", "swa"])
def test_weights_that_are_not_finite(titans, model_folder, tmp_path, variant):
    config = load_config(str(model_folder))
    config.variant = variant
    model = TitansForCausalLM(config)
    model.save_pretrained(tmp_path / "nan")
    load_tokenizer().save_pretrained(tmp_path / "nan")
    rewrite(tmp_path / "nan", lambda weights: [weight.fill_(torch.nan) for weight in weights.values()])
    (tmp_path / "text.txt").write_text("some text")
    assert "NaN" in refused(titans, "generate", tmp_path / "nan", "--prompt", "x")
    stderr = titans("evaluate", "perplexity", tmp_path / "nan", tmp_path / "text.txt", status=2).stderr
    assert re.search(r"^error: .*nan", stderr, re.I | re.M)


def test_a_training_that_diverges(titans, tmp_path):
    (tmp_path / "text.txt").write_text("some text to learn from, more than once " * 9)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.replace("swa", "lmm") % (tmp_path / "text.txt"))
    settings = ("learning_rate=1e30", "max_steps=5", "save_steps=1", "report_to=none", "lr_scheduler_type=constant")
    overrides = [f"training.{setting}" for setting in (f"output_dir={tmp_path / 'out'}", *settings)]
    result = titans("train", path, "data.sequence_length=16", *overrides, status=2)
    assert re.search(
        r"error: training diverged or cannot go on \(x holds NaN.*\); the last whole checkpoint is .*checkpoint-\d; "
        r"lower training.learning_rate\n$",
        result.stderr,
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--temperature", "-1"),
        ("--top-p", "nan"),
        ("--seed", str(1 << 63)),
        ("--seed", "-1"),
    ],
)
def test_sampling_options_out_of_range(titans, model_folder, options):
    assert options[0].strip("-").replace("-", ".") in titans(
        "generate", model_folder, "--prompt", "x", *options, status=2
    ).stderr.replace("_", ".").replace("-", ".")


def test_usage_errors_have_status_2_too(titans):
    assert "No such command" in titans("nonsense", status=2).stderr
    assert "--nonsense" in titans("train", "--nonsense", status=2).stderr


def test_the_installed_command_prints_no_traceback(tmp_path):
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "titans.cli", "train", "nowhere.yaml"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "error: cannot read the recipe nowhere.yaml: No such file or directory\n"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_output_that_cannot_show_a_character_costs_no_work(model_folder, monkeypatch, encoding):
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "argv", ["titans", "generate", str(model_folder), "--prompt", "é世", "--seed", "1"])
    monkeypatch.setattr(
        "titans.generation.stream.generate_text",
        lambda model, tokenizer, prompt, write, **options: [write(text) for text in ("Zoë ", "世\U0001f600")],
    )
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    shown.flush()
    known = "Zoë".encode(encoding, errors="replace")
    assert shown.buffer.getvalue().rstrip() == known + b" ??"


def test_help_imports_nothing_heavy():
    code = "import sys, titans.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    path = os.pathsep.join(filter(None, sys.path))
    assert (
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=False).returncode == 0
    )
