"""Comparisons: equal for all, resumable, and the numbers of the table are those of the runs."""

import dataclasses
import json
import math
import shutil
import statistics
from pathlib import Path

import pytest
import torch

from titans.errors import TitansError
from titans.evaluation import model_zoo
from titans.evaluation.comparison import compare, load_comparison, runs
from titans.evaluation.comparison.report import markdown, table
from titans.evaluation.synthetic import score
from titans.evaluation.synthetic_training import train_on
from titans.training.fit import Diverged

SMALLEST = Path(__file__).with_name("compare-smallest.yaml")


def kept(folder):
    """The runs that a folder keeps, by model and key."""
    found = {}
    for path in sorted((folder / "runs").glob("*/results.jsonl")):
        lines = map(json.loads, path.read_text().splitlines())
        found |= {(path.parent.name, line["key"]): line["result"] for line in lines}
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The smallest comparison, run once, and its folder. Not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    return compare(load_comparison(SMALLEST), folder), folder


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished[1], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def trainings(monkeypatch):
    """Record what is trained."""
    made = []

    def recorded(model, task, sizes, budget, seed, progress):
        made.append((model.config.variant, budget.learning_rate, seed))
        return train_on(model, task, sizes, budget, seed, progress)

    monkeypatch.setattr(runs, "train_on", recorded)
    return made


def test_every_rate_on_one_seed_then_the_best_on_all(finished):
    result, folder = finished
    assert [model.name for model in result.models] == ["deltanet", "swa"]
    for model in result.models:
        assert [(r.learning_rate, r.seed) for r in model.sweep] == [(1e-3, 1), (1e-2, 1)]
        best = min(model.sweep, key=lambda r: r.validation_loss)
        assert [(r.learning_rate, r.seed) for r in model.runs] == [(best.learning_rate, 1), (best.learning_rate, 2)]
        assert model.runs[0] == best
    assert len(kept(folder)) == 6


def test_a_run_is_what_the_library_measures(finished):
    result, folder = finished
    comparison = load_comparison(SMALLEST)
    swa = comparison.models[1]
    model = model_zoo.make_model(swa.fields, 16, 1)
    budget = comparison.budget.__class__(steps=3, batch=2, learning_rate=1e-2)
    train_on(model, comparison.task, comparison.train, budget, 1)
    validation = score(model, comparison.task, comparison.validation[0], "validation", sequences=4)
    test = score(model, comparison.task, comparison.lengths[1], "test", sequences=4)
    found = result.models[1].sweep[1]
    assert found.validation_loss == pytest.approx(validation.loss, rel=1e-6)
    assert found.values["24/3"] == test.accuracy
    written = kept(folder)["swa", "learning rate 0.01, seed 1"]
    assert written["test"][1]["correct"] == test.correct
    assert written["training"]["tokens"] == 3 * 2 * 12
    assert written["state_bytes"] == model.initial_state(1).nbytes == found.state_bytes


@pytest.mark.slow  # three processes import torch and transformers
def test_models_in_processes_of_their_own_find_the_same(finished, tmp_path):
    result, folder = finished
    told, said = [], []
    again = compare(
        load_comparison(SMALLEST), tmp_path, jobs=2, progress=lambda share, _: told.append(share), finished=said.append
    )
    assert len(said) == len(set(said)) == 6
    assert kept(tmp_path).keys() == kept(folder).keys()
    for here, there in zip(again.models, result.models, strict=True):
        assert [run.values for run in here.runs] == [run.values for run in there.runs]
        assert [run.validation_loss for run in here.sweep] == pytest.approx([r.validation_loss for r in there.sweep])
    assert told[0] == pytest.approx(1 / 6)
    with pytest.raises(TitansError, match="jobs is 0"):
        compare(load_comparison(SMALLEST), tmp_path, jobs=0)


@pytest.mark.slow
def test_a_job_that_fails_says_why_and_stops_the_others(tmp_path):
    comparison = load_comparison(SMALLEST, ["models.swa.learning_rates=[1e-3, 1e-2]"])
    spec = dataclasses.replace(comparison.models[1], fields={"variant": "no such"})
    with pytest.raises(TitansError, match="no such"):
        compare(dataclasses.replace(comparison, models=(spec,)), tmp_path, jobs=2)


@pytest.mark.parametrize(
    ("variant", "grows"), [("transformer", True), ("rmt", False), ("samba", False), ("mac", False)]
)
def test_state_that_grows_with_the_stream_has_no_size(variant, grows):
    model = model_zoo.make_model({"variant": variant, "hidden_size": 16, "num_attention_heads": 2}, 16)
    assert runs.state_bytes(model) == (None if grows else model.initial_state(1).nbytes)


def test_table_and_files_hold_the_means(finished):
    result, folder = finished
    saved = json.loads((folder / "results.json").read_text())
    for model, written in zip(result.models, saved["models"], strict=True):
        for size in ("12/2", "24/3"):
            values = [r.values[size] for r in model.runs]
            assert written["means"][size]["mean"] == pytest.approx(statistics.fmean(values))
            assert written["means"][size]["half_width"] == pytest.approx(12.706 * abs(values[0] - values[1]) / 2)
    head, *rows = table(result)
    assert head[4:6] == ["12/2", "24/3"]
    mean = result.models[0].mean("24/3")
    assert rows[0][5] == f"{100 * mean.mean:.1f} ± {100 * mean.half_width:.1f} %"
    assert (folder / "table.md").read_text() == markdown(result)
    assert "| deltanet |" in markdown(result)
    assert "chance 0.125" in markdown(result)
    assert (folder / "plots.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in (folder / "report.html").read_text()


def test_nothing_is_repeated(copied, trainings):
    before = {path: path.stat().st_mtime_ns for path in (copied / "runs").rglob("*")}
    table_before = (copied / "table.md").read_bytes()
    compare(load_comparison(SMALLEST), copied)
    assert trainings == []
    assert {path: path.stat().st_mtime_ns for path in (copied / "runs").rglob("*")} == before
    assert (copied / "table.md").read_bytes() == table_before


def test_a_crash_loses_one_run(tmp_path, trainings, monkeypatch, finished):
    whole = runs.score
    calls = []

    def crash(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 3 * 2 + 2:  # in the tests of the third run
            raise RuntimeError("out of power")
        return whole(*arguments, **options)

    monkeypatch.setattr(runs, "score", crash)
    with pytest.raises(RuntimeError):
        compare(load_comparison(SMALLEST), tmp_path)
    assert len(kept(tmp_path)) == 2
    assert len(trainings) == 3
    monkeypatch.setattr(runs, "score", whole)
    result = compare(load_comparison(SMALLEST), tmp_path)
    assert len(trainings) == 3 + 4
    assert trainings[2] == trainings[3]
    for again, once in zip(result.models, finished[0].models, strict=True):
        assert [r.values for r in again.runs] == [r.values for r in once.runs]


def test_more_seeds_go_on(copied, trainings):
    compare(load_comparison(SMALLEST, ["seeds=[1, 2, 3]"]), copied)
    assert [seed for _, _, seed in trainings] == [3, 3]


def test_runs_of_another_recipe_are_refused(copied, trainings):
    with pytest.raises(TitansError, match=r"deltanet holds results under other settings \(budget; "):
        compare(load_comparison(SMALLEST, ["budget.steps=4"]), copied)
    (copied / "runs" / "swa" / "results.jsonl").write_text("{\n")
    with pytest.raises(TitansError, match=r"results.jsonl, line 1 is damaged: delete that line"):
        compare(load_comparison(SMALLEST), copied)
    (copied / "runs" / "swa--lr0.01--seed1.json").write_text("{}")
    with pytest.raises(TitansError, match=r"runs holds runs of an older version: choose another --out"):
        compare(load_comparison(SMALLEST), copied)
    assert trainings == []


def test_diverged_runs_are_kept_and_said(tmp_path, monkeypatch):
    def diverging(model, task, sizes, budget, seed, progress):
        if model.config.variant == "swa" or (budget.learning_rate, seed) == (1e-3, 2):
            raise Diverged("the training diverged at step 7: the loss is nan")
        training = train_on(model, task, sizes, budget, seed, progress)
        return training

    monkeypatch.setattr(runs, "train_on", diverging)
    comparison = load_comparison(SMALLEST, ["learning_rates=[1e-3]", "seeds=[1, 2, 3]"])
    result = compare(comparison, tmp_path)
    deltanet, swa = result.models
    assert (deltanet.diverged, swa.diverged) == (1, 3)
    assert deltanet.mean("12/2").seeds == 2
    _, first, second = table(result)
    assert first[-1] == "1 of 3"
    assert second[4:] == ["diverged", "diverged", "", "3 of 3"]
    saved = json.loads((tmp_path / "results.json").read_text())
    assert saved["models"][1]["runs"][0]["validation_loss"] is None
    assert compare(comparison, tmp_path).models[0].runs == deltanet.runs


def test_text(tmp_path):
    (tmp_path / "text.txt").write_text("Some words, and then some more.\n" * 100)
    recipe = tmp_path / "text.yaml"
    recipe.write_text(f"""
task: {{name: text, data: {tmp_path / "text.txt"}}}
train: 16
lengths: [16, 64]
budget: {{steps: 10, batch: 4}}
learning_rates: [1e-2]
seeds: [1]
sequences: 8
allow_unequal: true
models:
  swa: {{variant: swa, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, sliding_window: 8}}
  llama: {{model_type: llama, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2}}
""")
    result = compare(load_comparison(recipe), tmp_path / "out")
    for model in result.models:
        assert 2 < model.mean("16").mean < 7.9  # bits per byte, better than the 8 of a guess
        assert model.mean("16").half_width is None
    written = kept(tmp_path / "out")["swa", "learning rate 0.01, seed 1"]
    assert result.models[0].mean("64").mean == pytest.approx(written["test"][1]["loss"] / math.log(2))
    assert table(result)[2][2] == "grows"
    (tmp_path / "text.txt").write_text("Other words, and then some more.\n" * 100)
    with pytest.raises(TitansError, match=r"under other settings \(text; "):
        compare(load_comparison(recipe), tmp_path / "out")


class TestRecipe:
    def test_equal_parameters(self):
        comparison = load_comparison(SMALLEST)
        counts = [spec.parameters for spec in comparison.models]
        assert counts == pytest.approx([4000, 4000], rel=0.01)
        with torch.device("meta"):
            models = [model_zoo.make_model(c.fields, 16) for c in comparison.models]
        assert [model.num_parameters() - 16 * 16 for model in models] == counts

    def test_unequal_models_are_refused_unless_allowed(self):
        overrides = ["parameters=null", "models.swa.intermediate_size=200"]
        with pytest.raises(TitansError, match=r"swa has .* parameters and deltanet .*, more than 3% apart"):
            load_comparison(SMALLEST, overrides)
        assert len(load_comparison(SMALLEST, [*overrides, "allow_unequal=true"]).models) == 2

    def test_the_limit_is_three_percent(self):
        def load(width):
            widths = [f"models.deltanet.intermediate_size={width}", "models.swa.intermediate_size=100"]
            return load_comparison(SMALLEST, ["parameters=null", "models.deltanet.variant=swa", *widths])

        smaller, larger = (c.parameters for c in load(98).models)
        assert larger - smaller == 2 * 3 * 16
        load(100 + int(0.03 * larger / 48))
        with pytest.raises(TitansError, match="more than 3% apart"):
            load(101 + int(0.03 * larger / 48))

    def test_defaults(self):
        comparison = load_comparison(
            SMALLEST, ["lengths=null", "seeds=null", "sequences=null", "train=[12/2, 24/3, 12/2]"]
        )
        assert [str(size) for size in comparison.lengths] == ["12/2", "24/3"]
        assert [str(size) for size in comparison.validation] == ["24/3"]
        assert (comparison.seeds, comparison.sequences) == ((1, 2, 3), 256)
        assert comparison.budget.weight_decay == 0.1

    def test_rates_of_a_model(self):
        comparison = load_comparison(SMALLEST, ["models.swa.learning_rates=[1e-4, 2e-4]"])
        assert [c.learning_rates for c in comparison.models] == [(1e-3, 1e-2), (1e-4, 2e-4)]
        with pytest.raises(TitansError, match="as many learning rates as the others, not deltanet 2, swa 1"):
            load_comparison(SMALLEST, ["models.swa.learning_rates=[1e-4]"])

    @pytest.mark.parametrize(
        ("override", "sentence"),
        [
            ("taks.name=mqar", 'unknown key "taks" in the recipe: did you mean "task"'),
            ("task.name=mqarr", 'did you mean "mqar"'),
            ("task.vocab=3", "no option 'vocab': expected one of vocabulary"),
            ("task=null", 'no "task" section'),
            ("task={vocabulary: 3}", 'the task has no "name"'),
            ("task={name: text}", "task.data is empty"),
            ("task={name: text, dta: x}", 'did you mean "task.data"'),
            ("task={name: text, data: gone.txt}", "does not exist"),
            ("train=12", "write 12/4"),
            ("lengths=[4/2]", "take 8 tokens"),
            ("train=x", "is no size"),
            ("train=1.5", "expected list or str or int"),
            ("budget.stps=3", 'did you mean "budget.steps"'),
            ("budget.learning_rate=3", 'unknown key "budget.learning_rate"'),
            ("budget.steps=null", "budget.steps is None .*, expected int"),
            ("budget={batch: 2}", 'no "budget.steps"'),
            ("budget.steps=0", "steps is 0, expected at least 1"),
            ("learning_rates=[]", "different positive numbers"),
            ("learning_rates=[1e-3, fast]", "different positive numbers"),
            ("seeds=[1, 1]", "different whole numbers"),
            ("seeds=[-1]", "different whole numbers"),
            ("sequences=0", "at least 1"),
            ("models={}", "models is empty"),
            ("models.swa.hiden_size=3", 'model swa: unknown key "model.hiden_size" in the recipe: did you mean'),
            ("models.swa=3", "expected fields"),
            ("models.swa.variant=swb", "model swa: .*swb"),
            ("models={a/b: {}}", "is no name for a model"),
            ("parameters=10", "model deltanet: .* parameters remain"),
        ],
    )
    def test_what_does_not_work_is_one_sentence(self, override, sentence):
        with pytest.raises(TitansError, match=sentence) as refused:
            load_comparison(SMALLEST, [override])
        assert "\n" not in str(refused.value)
