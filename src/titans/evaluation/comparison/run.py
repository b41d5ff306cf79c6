"""The runs of a comparison: each finished one is a file, and is not repeated."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from titans.data.synthetic.task import Size
from titans.data.synthetic.text_pieces import TextPieces
from titans.errors import TitansError
from titans.evaluation import model_zoo
from titans.evaluation.comparison.recipe import Comparison, ModelSpec
from titans.evaluation.comparison.report import write_report
from titans.evaluation.comparison.result import ComparisonResult, ModelResult, Run
from titans.evaluation.progress import Finished, Progress, unheard, unseen
from titans.evaluation.synthetic import score, score_as_json
from titans.evaluation.synthetic_training import Diverged, train_on
from titans.io import atomic
from titans.state import GrowingState

RUNS = "runs"


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
    such. What is finished lies in `runs/` of the folder, one file each; called again, only what is missing is run.

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
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    work = _Work(comparison, folder / RUNS, device, progress, finished)
    for spec in comparison.models:
        for rate in spec.learning_rates:
            work.finished(spec, rate, comparison.seeds[0])  # runs of another recipe are known at once
    if jobs > 1:
        _run_in_processes(work, jobs)
        work.tell = unheard  # all has been told
    results = [work.model(spec) for spec in comparison.models]
    result = ComparisonResult(
        comparison.task_fields,
        comparison.task.kind,
        comparison.task.chance,
        dataclasses.asdict(comparison.budget) | {"learning_rate": None},
        tuple(dict.fromkeys(str(size) for size in comparison.train)),
        tuple(str(size) for size in comparison.lengths),
        tuple(results),
    )
    write_report(result, folder)
    return result


class _Work:
    """The runs still to do, and where the finished ones lie."""

    def __init__(
        self, comparison: Comparison, folder: Path, device: str, progress: Progress, finished: Finished
    ) -> None:
        self.comparison, self.folder, self.device, self.progress = comparison, folder, device, progress
        self.tell = finished
        each = len(comparison.models[0].learning_rates) + len(comparison.seeds) - 1
        self.total, self.done = each * len(comparison.models), 0

    def model(self, spec: ModelSpec) -> ModelResult:
        """Return all runs of a model: the sweep on the first seed, then the best rate on the others."""
        seeds = self.comparison.seeds
        sweep = [self.run(spec, rate, seeds[0]) for rate in spec.learning_rates]
        best = min(sweep, key=lambda run: run.validation_loss)
        others = [self.run(spec, best.learning_rate, seed) for seed in seeds[1:]]
        return ModelResult(spec.name, spec.parameters, tuple(sweep), (best, *others))

    def run(self, spec: ModelSpec, rate: float, seed: int) -> Run:
        """Return a finished run, after running it where it is missing."""
        run = self.finished(spec, rate, seed)
        if run is None:
            content = self._settings(spec, rate, seed) | self._measure(spec, rate, seed)
            path = self._path(spec, rate, seed)
            atomic.write_json(path, content)
            run = Run.of(content)
        self.done += 1
        loss = f"loss {run.validation_loss:.3f}" if math.isfinite(run.validation_loss) else "diverged"
        what = f"{spec.name}, learning rate {rate:g}, seed {seed}: {loss}"
        self.progress(self.done / self.total, what)
        self.tell(what)
        return run

    def finished(self, spec: ModelSpec, rate: float, seed: int) -> Run | None:
        """Return a run that lies in the folder, or None.

        Raises:
            TitansError: it is one of another recipe, or damaged.
        """
        path = self._path(spec, rate, seed)
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_bytes())
            run = Run.of(content)
        except (ValueError, KeyError, TypeError) as error:
            raise TitansError(f"{path} is damaged: delete it, and it will be run again") from error
        settings = json.loads(json.dumps(self._settings(spec, rate, seed)))
        differs = [key for key, value in settings["settings"].items() if content["settings"].get(key) != value]
        if differs:
            raise TitansError(
                f"{path} is a run of another recipe ({', '.join(differs)} differ): choose another --out, or delete it"
            )
        return run

    def _path(self, spec: ModelSpec, rate: float, seed: int) -> Path:
        return self.folder / f"{spec.name}--lr{rate:g}--seed{seed}.json"

    def _settings(self, spec: ModelSpec, rate: float, seed: int) -> dict[str, Any]:
        """All that decides what comes out."""
        comparison = self.comparison
        sizes: Mapping[str, Sequence[Size]] = {
            "train": comparison.train,
            "validation": comparison.validation,
            "lengths": comparison.lengths,
        }
        settings = {
            "model": dict(spec.fields),
            "task": dict(comparison.task_fields),
            **{name: [str(size) for size in each] for name, each in sizes.items()},
            "budget": dataclasses.asdict(comparison.budget) | {"learning_rate": rate},
            "sequences": comparison.sequences,
            "seed": seed,
        }
        if isinstance(comparison.task, TextPieces):
            settings["text"] = hashlib.sha256(comparison.task.text.numpy().tobytes()).hexdigest()
        return {"settings": settings}

    def _measure(self, spec: ModelSpec, rate: float, seed: int) -> dict[str, Any]:
        comparison, what = self.comparison, f"{spec.name}, learning rate {rate:g}, seed {seed}"
        model = model_zoo.make_model(spec.fields, comparison.task.vocab_size, seed).to(self.device)
        budget = dataclasses.replace(comparison.budget, learning_rate=rate)

        def report(share: float, loss: float) -> None:
            self.progress((self.done + 0.9 * share) / self.total, f"{what}: loss {loss:.3f}")

        try:
            training = train_on(model, comparison.task, comparison.train, budget, seed, report)
            self.progress((self.done + 0.9) / self.total, f"{what}: testing")
            scores = {
                part: [
                    score_as_json(score(model, comparison.task.part(part), size, part, sequences=comparison.sequences))
                    for size in sizes
                ]
                for part, sizes in (("validation", comparison.validation), ("test", comparison.lengths))
            }
        except Diverged as error:
            return {"diverged": str(error)}
        return {"training": dataclasses.asdict(training), "state_bytes": _state_bytes(model), **scores}


def _run_in_processes(work: _Work, jobs: int) -> None:
    """Do all runs, a model to a process; what they find lies in the folder."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // jobs)
    with context.Manager() as manager, ProcessPoolExecutor(jobs, context, torch.set_num_threads, (threads,)) as pool:
        messages = manager.Queue()
        arguments = (work.comparison, work.folder, work.device, messages)
        waiting = {pool.submit(_run_model, spec, *arguments) for spec in work.comparison.models}
        done = 0
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=1.0)
                while not messages.empty():
                    done += 1
                    what = messages.get()
                    work.progress(done / work.total, what)
                    work.tell(what)
                for future in finished:
                    future.result()  # raises what went wrong there
        except BaseException:  # Ctrl-C too: start no other model
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_model(spec: ModelSpec, comparison: Comparison, folder: Path, device: str, messages: Any) -> None:
    parent = multiprocessing.parent_process()

    def watch(share: float, what: str) -> None:
        if parent is not None and not parent.is_alive():  # killed: nobody waits for what is done here
            os._exit(1)

    _Work(comparison, folder, device, watch, messages.put).model(spec)


@torch.inference_mode()
def _state_bytes(model: Any) -> int | None:
    """Bytes of one stream's state at the start, where it does not grow with the stream (within a segment it may)."""
    if not hasattr(model, "initial_state"):
        return None
    state = model.initial_state(1)
    growing = any(isinstance(part, GrowingState) for layer in state.layers for part in layer)
    return None if growing and state.segment is None else state.nbytes
