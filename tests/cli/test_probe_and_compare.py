"""The commands print what the library measures, and refuse in one sentence."""

import json
from pathlib import Path

import pytest

from titans.data.probe import Size
from titans.data.probes import make_probe
from titans.evaluation import contestants
from titans.evaluation.probe_training import Budget
from titans.evaluation.probes import run_probe

SMALLEST = Path(__file__).parents[1] / "evaluation" / "compare-smallest.yaml"
MODEL = ("--hidden-size", 16, "--layers", 1, "--set", "memory_chunk_size=4")
SHORT = ("--steps", 2, "--batch", 2, "--sequences", 4)


def refused(titans, *arguments):
    result = titans(*arguments, status=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_recall(titans, tmp_path):
    options = (
        "--vocabulary",
        16,
        "--train",
        "16/2",
        "--lengths",
        "16/2,32/4",
        "--seeds",
        "1,2",
        "--out",
        tmp_path / "o",
    )
    printed = titans("evaluate", "recall", *MODEL, *SHORT, *options).stdout
    saved = json.loads((tmp_path / "o" / "probe.json").read_text())
    fields = {"variant": "lmm", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    expected = run_probe(
        lambda seed: contestants.make_model({**fields, "memory_chunk_size": 4}, 16, seed),
        make_probe("mqar", {"vocabulary": 16}),
        [Size(16, 2)],
        [Size(16, 2), Size(32, 4)],
        Budget(2, 2),
        seeds=(1, 2),
        sequences=4,
    )
    for run, written in zip(expected.runs, saved["runs"], strict=True):
        for score, number in zip(run.scores, written["scores"], strict=True):
            assert number["correct"] == score.correct
            assert number["loss"] == pytest.approx(score.loss, rel=1e-5)
            assert f"{score.loss:.3f}" in printed
    assert f"lmm, {expected.parameters:,} parameters" in printed
    assert f"{expected.mean('32/4'):.1%}" in printed
    assert "chance   0.125" in printed
    assert (tmp_path / "o" / "probe.png").exists()


def test_state(titans):
    options = ("--task", "walk", "--modulus", 3, "--variant", "mamba2", "--train", "3-6", "--lengths", "6,72")
    printed = titans("evaluate", "state", *MODEL, *SHORT, *options).stdout
    assert "walk: mamba2" in printed
    assert "at the last position" in printed
    assert "chance   0.333" in printed


def test_compare(titans, tmp_path):
    one_rate = ("learning_rates=[1e-2]", "seeds=[1]")
    printed = titans("compare", SMALLEST, *one_rate, "--out", tmp_path).stdout
    saved = json.loads((tmp_path / "results.json").read_text())
    for model in saved["models"]:
        assert f"{100 * model['means']['24/3']['mean']:.1f} %" in printed
        assert f"{model['parameters']:,}" in printed
    assert "the same for all" in printed
    assert (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("recall", "--task", "parity"), 'no recall task "parity": expected one of mqar'),
        (("state", "--task", "mqar"), "mqar is a recall task: use titans evaluate recall"),
        (("state", "--task", "party"), 'did you mean "parity"'),
        (("state", "--lengths", "40,x"), '"x" is no size'),
        (("state", "--lengths", "64/4"), "write 64, not 64/4"),
        (("recall", "--train", "64"), "write 64/4"),
        (("recall", "--lengths", "14/4"), "take 16 tokens"),
        (("recall", "--vocabulary", "7"), "expected an even number"),
        (("state", "--task", "walk", "--modulus", "4"), "expected an odd one"),
        (("state", "--seeds", "1,1"), "expected different numbers"),
        (("state", "--seeds", "one"), 'the seeds are "one"'),
        (("state", "--learning-rate", "0"), "learning_rate is 0"),
        (("state", "--variant", "lmn"), "variant='lmn' is unknown"),
        (("state", "--heads", "3"), "hidden_size=64 is not a multiple"),
        (("state", "--set", "memory_dpth=1"), 'did you mean "model.memory_depth"'),
        (("state", "--set", "memory_depth"), "is no override"),
        (("state", "--variant", "lmm", "--preset", "lmm-tiny"), "either as --variant or as --preset"),
    ],
)
def test_bad_options(titans, arguments, sentence):
    assert sentence in refused(titans, "evaluate", *arguments)


def test_bad_comparisons(titans, tmp_path):
    assert "cannot read the recipe nowhere.yaml" in refused(titans, "compare", "nowhere.yaml")
    assert 'did you mean "budget.steps"' in refused(titans, "compare", SMALLEST, "budget.step=3", "--out", tmp_path)
    (tmp_path / "file").touch()
    assert "file" in refused(titans, "compare", SMALLEST, "--out", tmp_path / "file")


@pytest.mark.parametrize("command", ["compare", "evaluate recall", "evaluate state"])
def test_help_teaches(titans, command):
    assert f"titans {command}" in titans(*command.split(), "--help").stdout
