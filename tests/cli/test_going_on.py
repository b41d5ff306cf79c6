"""Ctrl-C in an evaluation: where the same command goes on it says so, and it does."""

import pytest

from titans.evaluation import comparison, ruler, synthetic
from titans.evaluation.streaming_lm import StreamingLM


@pytest.fixture
def interrupted(monkeypatch):
    """Interrupt at the second call of a function: `interrupted(owner, name)`."""

    def interrupt(owner, name):
        calls, real = [], getattr(owner, name)

        def once(*arguments, **options):
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, once)
        return calls

    return interrupt


def commands(folder, model):
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        "task: {name: mqar, vocabulary: 16}\ntrain: 12/2\nlengths: [12/2]\nbudget: {steps: 1, batch: 2}\n"
        "learning_rates: [1e-3]\nseeds: [1, 2]\nsequences: 4\n"
        "models: {a: {variant: swa, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}}\n"
    )
    tiny = ("--device", "cpu")
    return {
        "ruler": ("evaluate", "ruler", model, "--tasks", "pk", "--lengths", "650", "--limit", 2, *tiny),
        "babilong": ("evaluate", "babilong", model, "--tasks", "qa4", "--samples", 2, "--bare", *tiny),
        "compare": ("compare", recipe),
    }


@pytest.mark.parametrize("name", ["ruler", "babilong", "compare"])
def test_the_same_command_goes_on(titans, interrupted, monkeypatch, model_folder, tmp_path, name):
    command = commands(tmp_path, model_folder)[name]
    monkeypatch.setattr(StreamingLM, "answer", lambda self, *_, **__: "an answer")
    where = (StreamingLM, "answer") if name != "compare" else (comparison.runs, "train_on")
    calls = interrupted(*where)
    out = tmp_path / "out"
    result = titans(*command, "--out", out, status=130)
    assert f"interrupted: what is finished is in {out}, the same command goes on\n" in result.stderr
    titans(*command, "--out", out)
    assert len(calls) == 3  # the first of two, the second, interrupted, and the second again


@pytest.mark.parametrize("name", ["ruler", "recall"])
def test_where_nothing_is_kept_nothing_is_promised(titans, interrupted, monkeypatch, model_folder, tmp_path, name):
    options = ("--hidden-size", 16, "--layers", 1, "--vocabulary", 16, "--train", "16/2", "--lengths", "16/2")
    command = {"recall": ("evaluate", "recall", *options, "--steps", 1, "--seeds", "1,2")} | commands(
        tmp_path, model_folder
    )
    monkeypatch.setattr(StreamingLM, "answer", lambda self, *_, **__: "an answer")
    interrupted(*((ruler, "references_found") if name == "ruler" else (synthetic, "train_on")))
    result = titans(*command[name], status=130)
    assert result.stderr.endswith("\ninterrupted\n")
