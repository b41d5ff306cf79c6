"""What a user can correct is one clear sentence on stderr and exit status 2."""

import os
import shutil
import subprocess
import sys

import pytest

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
        ("model.memory_chunk_size=0", "memory_chunk_size"),
        ("model.sliding_window=-1", "sliding_window"),
        ("data.train=missing.txt", '"missing.txt" does not exist'),
        ("tokenizer=nowhere/at/all", 'cannot load the tokenizer "nowhere/at/all"'),
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


def test_help_imports_nothing_heavy():
    code = "import sys, titans.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    path = os.pathsep.join(filter(None, sys.path))
    assert (
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=False).returncode == 0
    )
