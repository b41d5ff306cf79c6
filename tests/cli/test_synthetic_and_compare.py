"""The commands print what the library measures, and refuse in one sentence."""

import json
from pathlib import Path

import pytest

from titans.data.synthetic.registry import make_task
from titans.data.synthetic.task import Size
from titans.evaluation import model_zoo
from titans.evaluation.synthetic import train_and_score
from titans.evaluation.synthetic_training import Budget

SMALLEST = Path(__file__).parents[1] / "evaluation" / "compare-smallest.yaml"
MODEL = ("--hidden-size", 16, "--layers", 1, "--set", "memory.chunk_size=4")
SHORT = ("--steps", 2, "--batch", 2, "--sequences", 4)


def refused(titans, *arguments):
    result = titans(*arguments, status=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_recall(titans, logged, tmp_path):
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
    result = titans("evaluate", "recall", *MODEL, *SHORT, *options)
    printed = result.stdout
    assert logged(result) == ["seed 1", "seed 1, 16/2", "seed 1, 32/4", "seed 2", "seed 2, 16/2", "seed 2, 32/4"]
    saved = json.loads((tmp_path / "o" / "synthetic.json").read_text())
    fields = {"variant": "lmm", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    expected = train_and_score(
        lambda seed: model_zoo.make_model({**fields, "memory": {"chunk_size": 4}}, 16, seed),
        make_task("mqar", {"vocabulary": 16}),
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
    assert saved["protocol"] == expected.protocol == printed.splitlines()[-2]
    assert expected.protocol == (
        "protocol: mqar as Zoology's multiquery_ar makes it, 16 tokens, filler random, trained on 2 steps of 2 "
        "sequences at 16/2, sizes mixed, none read twice, AdamW, cosine schedule from 0.003, tested on 4 sequences of "
        "each size, the likeliest token counts; deviations: sequences drawn anew at every step; sizes and steps as "
        "given; blocks with feed-forward layers; not 8,192 tokens"
    )
    assert (tmp_path / "o" / "synthetic.png").exists()


def test_state(titans):
    options = ("--task", "walk", "--modulus", 3, "--variant", "mamba2", "--train", "3-6", "--lengths", "6,72")
    printed = titans("evaluate", "state", *MODEL, *SHORT, *options).stdout
    assert "walk: mamba2" in printed
    assert "at the last position" in printed
    assert "chance   0.333" in printed
    assert "protocol: walk, 3 states, the running product asked at every position, trained on 2 steps" in printed
    assert printed.endswith("deviations: none\n")


def test_a_hybrid_of_listed_layers(titans):
    options = ("--layers", 2, "--set", "layers=[delta_net,attention]", "--train", "3-6", "--lengths", "6")
    printed = titans("evaluate", "state", *MODEL, *SHORT, *options).stdout
    assert "['delta_net', 'attention']" in printed


@pytest.mark.parametrize(
    ("task", "definition", "deviation"),
    [
        ("parity", "parity, 2 states", "every position is asked"),
        ("s5", "s5, 120 states", None),
        ("forgetting-mqar", "forgetting-mqar as Zoology's forgetting_mqar makes it, 8,192 tokens", "never the old one"),
        ("needle", "a needle in filler random, 8,192 tokens", None),
    ],
)
def test_protocols_of_the_other_tasks(task, definition, deviation):
    made = make_task(task)
    assert made.definition.startswith(definition)
    assert (deviation is None) == (not made.deviations)
    assert deviation is None or deviation in made.deviations[-1]


def test_compare(titans, logged, tmp_path):
    one_rate = ("learning_rates=[1e-2]", "seeds=[1]")
    result = titans("compare", SMALLEST, *one_rate, "--out", tmp_path)
    printed = result.stdout
    assert logged(result) == [f"{name}, learning rate 0.01, seed 1" for name in ("deltanet", "swa")]
    saved = json.loads((tmp_path / "results.json").read_text())
    for model in saved["models"]:
        assert f"{100 * model['means']['24/3']['mean']:.1f} %" in printed
        assert f"{model['parameters']:,}" in printed
    assert "the same for all" in printed
    assert (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("recall", "--task", "parity"), "parity is a state task: use titans evaluate state"),
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
        (("state", "--set", "memory.dpth=1"), 'did you mean "model.memory.depth"'),
        (("state", "--set", "memory.depth"), "is no override"),
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
