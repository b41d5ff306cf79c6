"""Ctrl-C leaves a resumable checkpoint and status 130; kill -9 leaves the last checkpoint intact."""

import signal
import time

import pytest

from titans.training.checkpoints import last_intact_checkpoint

RECIPE = """
model: {{variant: lmm, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, memory: {{chunk_size: 16}}}}
data: {{train: {text}, sequence_length: 16}}
training: {{output_dir: {out}, max_steps: 100000, per_device_train_batch_size: 2, save_steps: 2, report_to: none}}
"""


@pytest.fixture
def training(tmp_path, start_titans):
    """A training that never ends by itself, started; with its recipe and its folder."""
    (tmp_path / "text.txt").write_text("some text that is read again and again, " * 20)
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    recipe.write_text(RECIPE.format(text=tmp_path / "text.txt", out=out))
    process = start_titans("train", recipe)
    deadline = time.monotonic() + 120
    while last_intact_checkpoint(out) is None:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, recipe, out


def steps(checkpoint):
    return int(checkpoint.name.removeprefix("checkpoint-"))


def test_interrupt(training, titans):
    process, recipe, out = training
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    last = last_intact_checkpoint(out)
    assert f"interrupted: the same command resumes from {last}" in errors
    assert "Traceback" not in errors
    done = steps(last) + 1
    printed = titans("train", recipe, f"training.max_steps={done}", "training.disable_tqdm=true").stdout
    assert f"resuming from {last}" in printed
    assert (out / f"checkpoint-{done}").exists()


@pytest.mark.slow
def test_kill(training, titans):
    process, recipe, out = training
    process.kill()
    process.communicate()
    last = last_intact_checkpoint(out)
    done = steps(last) + 1
    printed = titans("train", recipe, f"training.max_steps={done}", "training.disable_tqdm=true").stdout
    assert f"resuming from {last}" in printed
    assert f"saved: {out}" in printed
