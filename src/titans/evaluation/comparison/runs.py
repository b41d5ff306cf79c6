"""The runs of a comparison: each finished one is kept, and is not repeated."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from titans.data.synthetic.text_pieces import TextPieces
from titans.errors import TitansError
from titans.evaluation.comparison.recipe import Comparison, ModelSpec
from titans.evaluation.comparison.report import write_report
from titans.evaluation.comparison.result import ComparisonResult, ModelResult, Run
from titans.evaluation.model_zoo import make_model
from titans.evaluation.processes import call_in_processes
from titans.evaluation.progress import Finished, Progress, unheard, unseen
from titans.evaluation.result_store import ResultStore
from titans.evaluation.synthetic import score, score_as_json
from titans.evaluation.synthetic_training import train_on
from titans.ops.state import GrowingState
from titans.training.fit import Diverged

RUNS = "runs"
TRAINING = 0.9  # share of a run that its training takes
Tell = Callable[[tuple[float, str]], None]  # the share of a run that is done, and what it does


def compare(
    comparison: Comparison,
    folder: Path,
    *,
    device: str = "cpu",
    jobs: int = 1,
    progress: Progress = unseen,
    finished: Finished = unheard,
) -> ComparisonResult:
    """Train and test every model: each learning rate on the first seed, then the best one on all seeds.

    The best learning rate is the one with the lowest loss on the validation sequences. A run that diverged is kept as
    such. What is finished lies in `runs/` of the folder; called again, only what is missing is run.

    Args:
        comparison: the recipe.
        folder: where results go; made if it does not exist.
        device: where to train. Default "cpu".
        jobs: models to train at a time, each in a process of its own; changes speeds, and numbers by no more
            than rounding. Default 1.
        progress: called as work goes on; with several jobs, after each run. Default: nothing.
        finished: called with a sentence for each run that is done. Default: nothing.

    Returns:
        The results; written are `results.json`, `table.md`, `plots.png` and `report.html` too.

    Raises:
        TitansError: the folder holds runs of another recipe, or jobs is less than 1.
    """
    if jobs < 1:
        raise TitansError(f"jobs is {jobs}, expected at least 1")
    if any((folder / RUNS).glob("*.json")):
        raise TitansError(f"{folder / RUNS} holds runs of an older version: choose another --out, or delete them")
    for spec in comparison.models:
        _store(comparison, spec, folder)  # runs of another recipe are known at once
    total, done = len(comparison.models) * (len(comparison.models[0].learning_rates) + len(comparison.seeds) - 1), 0

    def told(message: tuple[float, str]) -> None:
        nonlocal done
        share, what = message
        if share == 1:
            done += 1
            finished(what)
        if share == 1 or jobs == 1:
            progress((done + share % 1) / total, what)

    calls = ((comparison, spec, folder, device) for spec in comparison.models)
    threads = max(1, torch.get_num_threads() // jobs)
    models = (
        [run_model(*call, told) for call in calls]
        if jobs == 1
        else call_in_processes(run_model, calls, jobs, told, threads)
    )
    result = ComparisonResult(
        comparison.task_fields,
        comparison.task.kind,
        comparison.task.chance,
        dataclasses.asdict(comparison.budget) | {"learning_rate": None},
        tuple(dict.fromkeys(str(size) for size in comparison.train)),
        tuple(str(size) for size in comparison.lengths),
        tuple(models),
    )
    write_report(result, folder)
    return result


def run_model(comparison: Comparison, spec: ModelSpec, folder: Path, device: str, tell: Tell) -> ModelResult:
    """Do all runs of a model that are missing: the sweep on the first seed, then the best rate on the others.

    `tell` is called with a share of 1 once for each run.
    """
    store, seeds = _store(comparison, spec, folder), comparison.seeds

    def run(rate: float, seed: int) -> Run:
        key = f"learning rate {rate:g}, seed {seed}"

        def show(share: float, what: str) -> None:
            tell((share, f"{spec.name}, {key}: {what}"))

        if store.get(key) is None:
            store.add(key, _train_and_test(comparison, spec, rate, seed, device, show))
        found = Run.of(rate, seed, comparison.task.kind, store.get(key) or {})
        show(1, f"loss {found.validation_loss:.3f}" if math.isfinite(found.validation_loss) else "diverged")
        return found

    sweep = [run(rate, seeds[0]) for rate in spec.learning_rates]
    best = min(sweep, key=lambda found: found.validation_loss)
    others = [run(best.learning_rate, seed) for seed in seeds[1:]]
    return ModelResult(spec.name, spec.parameters, tuple(sweep), (best, *others))


def _store(comparison: Comparison, spec: ModelSpec, folder: Path) -> ResultStore:
    """Open the finished runs of a model, under all else that decides what comes out."""
    settings: dict[str, Any] = {
        "model": dict(spec.fields),
        "task": dict(comparison.task_fields),
        "train": [str(size) for size in comparison.train],
        "validation": [str(size) for size in comparison.validation],
        "lengths": [str(size) for size in comparison.lengths],
        "budget": dataclasses.asdict(comparison.budget) | {"learning_rate": None},
        "sequences": comparison.sequences,
    }
    if isinstance(comparison.task, TextPieces):
        settings["text"] = hashlib.sha256(comparison.task.text.numpy().tobytes()).hexdigest()
    fields = ("diverged", "training", "state_bytes", "validation", "test")
    return ResultStore(folder / RUNS / spec.name, settings, fields)


def _train_and_test(
    comparison: Comparison, spec: ModelSpec, rate: float, seed: int, device: str, tell: Callable[[float, str], None]
) -> dict[str, Any]:
    task = comparison.task
    model = make_model(spec.fields, task.vocab_size, seed).to(device)
    budget = dataclasses.replace(comparison.budget, learning_rate=rate)
    found: dict[str, Any] = dict.fromkeys(("diverged", "training", "state_bytes", "validation", "test"))
    try:
        training = train_on(
            model, task, comparison.train, budget, seed, lambda share, loss: tell(TRAINING * share, f"loss {loss:.3f}")
        )
    except Diverged as error:
        return found | {"diverged": str(error)}
    tell(TRAINING, "testing")
    for part, sizes in (("validation", comparison.validation), ("test", comparison.lengths)):
        scores = (score(model, task.part(part), size, part, sequences=comparison.sequences) for size in sizes)
        found[part] = [score_as_json(each) for each in scores]
    return found | {"training": dataclasses.asdict(training), "state_bytes": state_bytes(model)}


@torch.inference_mode()
def state_bytes(model: Any) -> int | None:
    """Return the bytes of one stream's state, None where it grows with the stream (within a segment it may)."""
    if not hasattr(model, "initial_state"):
        return None
    state = model.initial_state(1)
    growing = any(isinstance(part, GrowingState) for layer in state.layers for part in layer)
    return None if growing and state.segment is None else state.nbytes
