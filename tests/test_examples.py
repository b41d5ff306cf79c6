"""The examples and notebooks run, on small settings, and say what they are to say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = {  # small settings, and what the output must hold
    "memory_in_your_module": (["--steps", "60"], r"right after 1,024 samples: (100|9\d)%"),
    "new_mixer": (["--steps", "5"], r"two pieces and the whole differ by \d\.\de-0[5-9]"),
    "finetune_with_trainer": (["--steps", "40"], r"was fine -> \{'label': 'good'.*\n.*was bad -> \{'label': 'bad'"),
    "forecast": (["--epochs", "1"], r"next: 2025-02-04"),
    "serve_and_chat": ([], r"ann: 'What is the code\?'; the memory has read 86 tokens"),
}
NOTEBOOKS = {"memory": {}, "forecasting": {"EPOCHS = 3": "EPOCHS = 1"}}


SLOW = ("finetune_with_trainer", "serve_and_chat", "forecast", "forecasting")


def _params(names):
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


def run(command, folder):
    environment = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SCRIPTS}
    assert {path.stem for path in EXAMPLES.glob("notebooks/*.ipynb")} == {*NOTEBOOKS}


@pytest.mark.parametrize("name", _params(SCRIPTS))
def test_examples_run(name, tmp_path):
    arguments, expected = SCRIPTS[name]
    assert re.search(expected, run([sys.executable, EXAMPLES / f"{name}.py", *arguments], tmp_path))


@pytest.mark.parametrize("name", _params(NOTEBOOKS))
def test_notebooks_run(name, tmp_path):
    """Cell after cell, as one program."""
    notebook = json.loads((EXAMPLES / f"notebooks/{name}.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    code = "\n".join("".join(cell["source"]) for cell in cells)
    for default, small in NOTEBOOKS[name].items():
        assert default in code
        code = code.replace(default, small)
    (tmp_path / "notebook.py").write_text(code, encoding="utf-8")
    run([sys.executable, "notebook.py"], tmp_path)
