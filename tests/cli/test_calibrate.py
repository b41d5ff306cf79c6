"""`titans calibrate` writes the policy that `--write gated` follows; and what is missing is said in one sentence."""

import json
import shutil

import pytest
import torch

from titans import TitansError, WritePolicy
from titans.evaluation.streaming_lm import load_streaming_lm
from titans.training.pretrained import load_write_policy

TEXT = "the memory takes in what surprises it, and nothing else. " * 12


@pytest.fixture
def folder(model_folder, tmp_path):
    """A model folder of its own, and a text."""
    copy = tmp_path / "model"
    shutil.copytree(model_folder, copy)
    (tmp_path / "text.txt").write_text(TEXT)
    return copy


@pytest.mark.slow
def test_calibrate_then_follow(titans, folder, tmp_path):
    text = tmp_path / "text.txt"
    printed = titans("calibrate", folder, text, "--tokens", 300, "--out", tmp_path / "out").stdout
    policy = WritePolicy.load(folder)
    assert policy.write == "gated"
    assert len(policy.threshold) == 2
    assert f"written: {folder / 'write_policy.json'}" in printed.replace("\n", "")
    assert json.loads((tmp_path / "out" / "calibration.json").read_text())["policy"]["decay"] == policy.decay
    for name in ("always", "never", "gated, decay 1e-05", "gated, decay 5e-05"):
        assert name in printed
    best = json.loads((folder / "write_policy.json").read_text())["best"]
    assert f"best           {best}: the default of --write for this model from now on" in printed
    # a policy that cannot be missed: all but the last layer's tokens are skipped
    WritePolicy("gated", (1e9, -1e9), (0.0, 0.0), (1e9, 1e9)).save(folder)
    printed = titans("evaluate", "perplexity", folder, text, "--write", "gated").stdout
    assert "memory         written 50.0%, skipped 50.0%, dropped 0.0%" in printed
    assert "written 0.0%, skipped 100.0%" in titans("evaluate", "perplexity", folder, text, "--write", "never").stdout
    assert "written 100.0%" in titans("evaluate", "perplexity", folder, text).stdout


@pytest.mark.parametrize(("best", "share"), [("always", "100.0%"), ("gated", "50.0%"), ("never", "0.0%")])
def test_what_calibration_found_best_is_the_default(titans, folder, tmp_path, best, share):
    WritePolicy("gated", (1e9, -1e9), (0.0, 0.0), (1e9, 1e9)).save(folder, best)
    text = tmp_path / "text.txt"
    assert f"memory         written {share}" in titans("evaluate", "perplexity", folder, text).stdout
    assert load_streaming_lm(str(folder)).write == best
    assert load_write_policy(str(folder), None).write == best
    assert load_write_policy(str(folder), "never").write == "never"
    page = tmp_path / "page.html"
    titans("inspect", folder, "--file", text, "--out", page)
    assert f'"write": "{best}"' in page.read_text()


def test_a_policy_that_does_not_say_what_is_best_is_refused(folder):
    path = WritePolicy("gated", (1.0,), (1.0,), (1.0,)).save(folder, "never")
    values = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in values.items() if key != "best"}))
    with pytest.raises(TitansError, match="is no write policy: expected an object with best, deca"):
        load_write_policy(str(folder), None)
    path.write_text(json.dumps({**values, "best": "often"}))
    with pytest.raises(TitansError, match="best='often' is unknown: choose one of always, gated, never"):
        load_write_policy(str(folder), None)


def test_generate_follows_the_policy(titans, folder, monkeypatch):
    seen = []
    start = WritePolicy.start
    monkeypatch.setattr(WritePolicy, "start", lambda self, state: seen.append(self.write) or start(self, state))
    WritePolicy("gated", (1e9, 1e9), (0.0, 0.0), (1.0, 1.0)).save(folder)
    options = ("--prompt", "hello there", "--temperature", 0, "--max-new-tokens", 5)
    for write in ("always", "gated", "never"):
        torch.manual_seed(0)
        titans("generate", folder, *options, "--write", write)
    assert seen == ["always", "gated", "never"]


@pytest.mark.parametrize("command", [("evaluate", "perplexity"), ("generate",)])
def test_gated_needs_a_good_policy(titans, folder, tmp_path, command):
    rest = (tmp_path / "text.txt",) if command[0] == "evaluate" else ("--prompt", "x")

    def error(write="gated"):
        return titans(*command, folder, *rest, "--write", write, status=2).stderr

    assert f"make one with titans calibrate {folder} DATA" in error()
    assert "write='often' is unknown: choose one of always, gated, never" in error("often")
    (folder / "write_policy.json").write_text("{")
    assert "write_policy.json is no JSON file" in error()
    WritePolicy("gated", (1.0,), (1.0,), (1.0,)).save(folder)
    assert "is for 1 memory layers and the model has 2: run titans calibrate on this model" in error()


def test_calibrate_refuses(titans, folder, tmp_path):
    assert "there is no model folder" in titans("calibrate", "owner/name", tmp_path / "text.txt", status=2).stderr
    assert "does not exist" in titans("calibrate", folder, "gone.txt", status=2).stderr
    (tmp_path / "short.txt").write_text("too short")
    assert "calibration needs at least" in titans("calibrate", folder, tmp_path / "short.txt", status=2).stderr
    assert not (folder / "write_policy.json").exists()
