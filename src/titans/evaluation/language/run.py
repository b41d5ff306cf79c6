"""Put tasks of lm-evaluation-harness to a model, and keep what each gave."""

from __future__ import annotations

import dataclasses
import math
import numbers
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from titans.errors import TitansError
from titans.evaluation.language.intervals import combined, interval
from titans.evaluation.language.result import LOCAL, LanguageResult, Metric, TaskResult, as_text, in_words
from titans.evaluation.progress import Finished, Progress, unheard, unseen, within
from titans.evaluation.result_store import ResultStore
from titans.evaluation.streaming_lm import StreamingLM
from titans.extras import missing

FORM = 3  # of the results that are kept: those of another form are not gone on from


def require_harness() -> None:
    """Refuse to go on without the packages.

    Raises:
        TitansError: they are not installed.
    """
    try:
        import lm_eval.models.huggingface
        import lm_eval.tasks  # noqa: F401
    except ImportError as error:
        raise missing(error, "eval", "evaluation on lm-evaluation-harness") from error


def evaluate_language(
    lm: StreamingLM,
    tasks: Sequence[str],
    *,
    data: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 1,
    max_length: int | None = None,
    lengths: Sequence[int] | None = None,
    folder: Path | None = None,
    progress: Progress = unseen,
    finished: Finished = unheard,
) -> LanguageResult:
    """Put tasks of lm-evaluation-harness to a model.

    Args:
        lm: a causal language model of this package or of Hugging Face, with its tokenizer and its write policy.
        tasks: what the harness calls them; of a group or tag, all its tasks are put.
        data: a folder with documents (see `titans.data.language_tasks.local_task`); tasks that it has none for come
            from the hub. Default: all from the hub.
        limit: put at most so many documents of each task, drawn with the seed. Default: all.
        seed: of that choice, and of what the harness draws. Default 0.
        batch_size: sequences of one forward pass; changes speed and memory, not the result. Default 1.
        max_length: tokens of the windows of whole documents, and the most that is left of a prompt. Default: the
            model's limit; where it has none, windows of 2,048 and prompts as long as they are.
        lengths: tokens of the texts that a task makes itself, as RULER's. Default: the task's own, 4,096 for RULER's.
        folder: keeps the results of finished tasks, which are not done again. Default: none.
        progress: called with the share of the work that is done, and the task. Default: nothing.
        finished: called with a sentence for each task that is done. Default: nothing.

    Returns:
        All metrics, with intervals.

    Raises:
        TitansError: there is no such task, its data or packages cannot be had, its prompts have examples and there
            are none but the questions, the folder holds results under other settings, or the model fails.
    """
    require_harness()
    from importlib.metadata import version

    from titans.evaluation.language.lm import make_lm, special_tokens
    from titans.evaluation.language.tasks import Tasks, quiet

    if len(set(tasks)) < len(tasks) or not tasks:
        raise TitansError(f"the tasks are {', '.join(tasks) or 'none'}: give each once, and one at least")
    settings: dict[str, Any] = {
        "benchmark": "lm",
        "form": FORM,
        "harness": version("lm_eval"),
        "model": lm.name,
        "write": None if lm.policy is None else dataclasses.asdict(lm.policy),
        "weights": None if folder is None else lm.digest(),  # trained anew under the same name, it gives other results
        "data": None if data is None else str(data),
        "limit": limit,
        "lengths": None if lengths is None else list(lengths),
        "seed": seed,
        "max_length": max_length,
    }
    store = ResultStore(folder, settings, ["results"])
    with quiet():
        lms = [make_lm(lm, batch_size, max_length, rolling) for rolling in (False, True)]
    results: list[TaskResult] = []
    with tempfile.TemporaryDirectory() as files:
        lm.tokenizer.save_pretrained(files)  # tasks that count tokens load theirs by a name
        defined = Tasks(tasks, data, Path(files), lengths, seed)
        for number, asked in enumerate(tasks):
            show = within(progress, number, 1, len(tasks), asked)
            run = _Run(asked, lms, store, limit, seed, show, finished)
            results += run.kept(asked) or run.all(defined)
    return LanguageResult(
        model=lm.name,
        harness=settings["harness"],
        window=lms[1].max_length,
        seed=seed,
        start=special_tokens(lms[0]),
        tasks=tuple(results),
        write=lm.write if lm.ours else "",
    )


@dataclasses.dataclass(frozen=True)
class _Run:
    """The tasks that go by one name, put to a model."""

    asked: str
    lms: Sequence[Any]  # for prompts, and for whole documents
    store: ResultStore
    limit: int | None
    seed: int
    progress: Callable[[float], None]
    finished: Finished

    def kept(self, key: str) -> list[TaskResult]:
        """Return the results that an earlier run finished; nothing where it did not."""
        return [_restore(one) for one in (self.store.get(key) or {"results": ()})["results"]]

    def all(self, defined: Any) -> list[TaskResult]:
        """Put the tasks to the model, but for those that were finished before."""
        tasks, groups = defined.load(self.asked)
        done: dict[str, TaskResult] = {}
        for task in tasks:
            key = f"{self.asked}/{task.name}"  # a group may have a task under other settings than it has by itself
            found = self.kept(key)
            if not found:
                found = [self._put(task, len(done) / len(tasks), len(tasks))]
                if task.name != self.asked:
                    self._keep(key, found)
                self.finished(_sentence(found[0]))
            done[task.name] = found[0]
        scores = [_group(group, done, self.asked) for group in groups]
        results = [*done.values(), *scores]
        self._keep(self.asked, results)
        for score in scores:
            self.finished(_sentence(score))
        return results

    def _keep(self, key: str, results: Sequence[TaskResult]) -> None:
        self.store.add(key, {"results": [dataclasses.asdict(result) for result in results]})

    def _put(self, task: Any, before: float, tasks: int) -> TaskResult:
        """Put the documents of a task to the model, or some that are drawn."""
        from titans.evaluation.language.tasks import running

        whole = task.task.OUTPUT_TYPE == "loglikelihood_rolling"
        lm = self.lms[whole]
        lm.start(lambda share: self.progress(before + share / tasks))
        with running(task.name):
            of = len(task.task.eval_docs)
            drawn = list(range(of))
            if self.limit is not None and self.limit < of:
                drawn = sorted(random.Random(f"{self.seed} {task.name}").sample(drawn, self.limit))
            measured = _evaluate(lm, task, drawn if len(drawn) < of else None, self.seed)
        for metric, (value, _) in measured.items():
            if not math.isfinite(value):
                raise TitansError(
                    f"{task.name} gives {metric} {value}: the model's weights are damaged, or its training diverged"
                )
        if not measured:
            raise TitansError(f"{task.name} gives no metric that is a number")
        changes = ("" if task.local is None else task.local.deviation, task.deviation)
        return TaskResult(
            task=task.name if task.local is None else f"{task.name}{LOCAL}",
            documents=len(drawn),
            of=of,
            cut=len(lm.cut),
            metrics={metric: interval(*found) for metric, found in measured.items()},
            deviation="; ".join(change for change in changes if change),
            examples=task.examples,
            whole=whole,
            group="" if task.name == self.asked else self.asked,
        )


def _evaluate(lm: Any, task: Any, drawn: list[int] | None, seed: int) -> dict[str, tuple[float, list[Any]]]:
    """Return by metric its value and what was measured at each document; a filter's name stands after a comma."""
    from lm_eval.evaluator import evaluate

    task.task.set_fewshot_seed(seed)
    if task.task.config.num_fewshot is None:
        task.task.set_config("num_fewshot", 0)
    samples = None if drawn is None else {task.name: drawn}
    # not `simple_evaluate`, which has git and the compiler report on the machine; our intervals need no bootstrap
    found = evaluate(lm, {"tasks": {task.name: task.task}}, samples=samples, bootstrap_iters=0)
    assert found is not None  # only other processes than the first of several get nothing
    measured = {}
    for key, value in found["results"][task.name].items():
        metric, comma, filtered = key.partition(",")
        if not comma or not isinstance(value, numbers.Real) or metric.endswith("_stderr"):
            continue
        logged = [one for one in found["samples"][task.name] if one["filter"] == filtered and metric in one]
        rows = [one[metric].item() if isinstance(one[metric], np.generic) else one[metric] for one in logged]
        if metric.isdigit():  # RULER's are called as the length of the text, and -1 at a text of another length
            rows = [one for one in rows if one != -1]
        if rows:
            measured[metric if filtered == "none" else key] = float(value), rows
    return measured


def _group(group: Any, done: dict[str, TaskResult], asked: str) -> TaskResult:
    """The score of a group from those of its tasks, as the harness computes it."""
    parts = {task.task_name: done[task.task_name] for task in group.get_all_tasks()}
    measured = {}
    for name, part in parts.items():
        values = {key if "," in key else f"{key},none": metric.value for key, metric in part.metrics.items()}
        measured[name] = {"sample_len": part.documents, **values}
    scored = group.aggregate(measured)
    metrics = {}
    for config in group.aggregate_metric_list:
        for key in scored:
            if key.partition(",")[0] != config.metric or "," not in key:
                continue
            name = key.removesuffix(",none")
            having = [part for part in parts.values() if name in part.metrics]
            sizes = [part.documents if config.weight_by_size else 1 for part in having]
            shares = [(n / sum(sizes), part.metrics[name]) for n, part in zip(sizes, having, strict=True)]
            metrics[name] = combined(scored[key], shares)
    local = all(part.task.endswith(LOCAL) for part in parts.values())
    return TaskResult(
        task=f"{group.name}{LOCAL}" if local else group.name,
        documents=sum(part.documents for part in parts.values()),
        of=sum(part.of for part in parts.values()),
        cut=sum(part.cut for part in parts.values()),
        metrics=metrics,
        group="" if group.name == asked else asked,
        subtasks=len(parts),
    )


def _sentence(result: TaskResult) -> str:
    shown = result.shown.items()
    told = ", ".join(f"{in_words(name)} {as_text(name, metric.value)}" for name, metric in shown)
    return f"{result.task}: {result.documents:,} documents, {told}"


def _restore(kept: dict[str, Any]) -> TaskResult:
    metrics = {metric: Metric(**numbers) for metric, numbers in kept["metrics"].items()}
    return TaskResult(**{**kept, "metrics": metrics})
