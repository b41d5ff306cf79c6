"""A fresh `pip install titans-lm` works without the extras, and what needs one says which."""

import re
import subprocess
import sys

import pytest

from titans.extras import missing

# What comes with an extra, and what core code must therefore never import.
EXTRA_MODULES = (
    "datasets",
    "pandas",
    "neuralforecast",
    "utilsforecast",
    "lm_eval",
    "wonderwords",
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "matplotlib",
    "tensorboard",
)
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({EXTRA_MODULES}))\n"  # as if they were not installed


def run(code):
    return subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, timeout=300)


def test_the_sentence_names_what_is_missing_and_the_extra():
    error = ModuleNotFoundError("No module named 'pandas'", name="pandas")

    assert str(missing(error, "forecast", "forecasting")) == (
        'forecasting needs pandas, which is not installed: pip install "titans-lm[forecast]"'
    )


CORE = """
import torch
import titans
from titans.models import flops, presets
import titans.training.trainer, titans.training.run, titans.generation.text, titans.persistence.store
model = titans.TitansForCausalLM(titans.TitansConfig(vocab_size=16, hidden_size=16, num_hidden_layers=1,
    num_attention_heads=2, segment_length=8, num_persistent_tokens=1)).eval()
assert model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2).shape == (1, 5)
assert titans.__version__
"""


def test_the_core_needs_no_extra():
    result = run(CORE)

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve", "model"], "serve"),
        (["evaluate", "lm", "model"], "eval"),
        (["forecast", "table.csv"], "forecast"),
        pytest.param(["evaluate", "forecasting", "table.csv"], "forecast", marks=pytest.mark.slow),
        pytest.param(["demo", "--quick", "--out", "report"], "eval", marks=pytest.mark.slow),
    ],
)
def test_a_command_without_its_extra_ends_with_the_sentence(arguments, extra, tmp_path):
    (tmp_path / "table.csv").write_text("ds,y\n2020-01-01,1\n")
    arguments = [str(tmp_path / a) if a == "table.csv" else a for a in arguments]
    result = run(f"import sys; sys.argv = ['titans', *{arguments}]; from titans.cli import main; main()")

    assert result.returncode == 2, result.stderr
    assert re.search(rf'needs [\w.]+, which is not installed: pip install "titans-lm\[{extra}\]"', result.stderr)
    assert "Traceback" not in result.stderr
