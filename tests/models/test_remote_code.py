"""A saved folder loads in programs that know nothing of this package, with `trust_remote_code`."""

import json
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from transformers import dynamic_module_utils

from titans import TitansConfig, TitansForCausalLM, TitansForecastingConfig, TitansForForecasting
from titans.data import byte_tokenizer


@pytest.fixture
def folder(tmp_path, byte_sizes):
    """An untrained model with its tokenizer."""
    folder = tmp_path / "model"
    TitansForCausalLM(TitansConfig(**byte_sizes, bos_token_id=256, eos_token_id=257)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def auto_map(folder):
    return json.loads((folder / "config.json").read_text())["auto_map"]


def test_the_code_in_a_folder_hands_out_the_package(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    for auto, ours in (("AutoConfig", TitansConfig), ("AutoModelForCausalLM", TitansForCausalLM)):
        found = dynamic_module_utils.get_class_from_dynamic_module(auto_map(folder)[auto], folder)
        assert issubclass(found, ours)
        assert found is not ours  # transformers marks it, and the package's must stay unmarked
    model = found.from_pretrained(folder, local_files_only=True)
    model.save_pretrained(tmp_path / "again")
    assert auto_map(tmp_path / "again") == auto_map(folder)
    assert (tmp_path / "again" / "modeling_titans.py").read_bytes() == (folder / "modeling_titans.py").read_bytes()


def test_the_code_in_a_forecasting_folder_hands_out_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    folder, values = tmp_path / "model", torch.randn(2, 96, 1)
    model = TitansForForecasting(TitansForecastingConfig(hidden_size=16)).eval()
    model.save_pretrained(folder)
    assert set(auto_map(folder)) == {"AutoConfig", "AutoModel"}
    found = dynamic_module_utils.get_class_from_dynamic_module(auto_map(folder)["AutoModel"], folder)
    assert issubclass(found, TitansForForecasting)
    again = found.from_pretrained(folder, local_files_only=True).eval()
    assert torch.equal(again(values).prediction, model(values).prediction)


@pytest.mark.parametrize("other", [None, ModuleType("titans")], ids=["no package", "another package of that name"])
def test_a_missing_package_is_told_by_its_name(folder, tmp_path, monkeypatch, other):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setitem(sys.modules, "titans", other)
    with pytest.raises(ImportError, match=r"needs the package titans-lm \(.*\): pip install titans-lm$"):
        dynamic_module_utils.get_class_from_dynamic_module(auto_map(folder)["AutoConfig"], folder)


TASK = """
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_target: label
doc_to_choice: ["a", "b"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.mark.slow  # half a minute
def test_plain_lm_eval_on_a_folder(folder, tmp_path):
    pytest.importorskip("lm_eval")
    (tmp_path / "data.jsonl").write_text('{"question": "q", "label": 0}\n')
    (tmp_path / "task.yaml").write_text(TASK.replace("DATA", str(tmp_path / "data.jsonl")))
    model = ["--model", "hf", "--model_args", f"pretrained={folder},trust_remote_code=True", "--device", "cpu"]
    task = ["--tasks", str(tmp_path / "task.yaml"), "--output_path", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval", *model, *task],
        env={**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "out").rglob("results*.json")
    assert json.loads(written.read_text())["results"]["tiny"]["acc,none"] in (0.0, 1.0)
