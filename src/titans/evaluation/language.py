"""A language model on the tasks of EleutherAI's lm-evaluation-harness, with intervals."""

from __future__ import annotations

import dataclasses
import functools
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from titans import disk
from titans.data.language_tasks import LocalTask, local_task
from titans.errors import TitansError
from titans.evaluation.answer_log import AnswerLog
from titans.evaluation.language_harness import Tasks, make_lm, require_harness, run_task
from titans.evaluation.reading import Reader
from titans.evaluation.recall import wilson

LOCAL = "_local"  # after the name of a task whose documents come from a file
Z = 1.96  # standard errors of a 95 % interval

# The metrics of the usual table, by task, and the accuracy of guessing.
TABLE: dict[str, tuple[str, ...]] = {
    "wikitext": ("word_perplexity",),
    "lambada_openai": ("perplexity", "acc"),
    "piqa": ("acc",),
    "hellaswag": ("acc_norm",),
    "winogrande": ("acc",),
    "arc_easy": ("acc",),
    "arc_challenge": ("acc_norm",),
    "social_iqa": ("acc",),
    "boolq": ("acc",),
}
CHANCE = {"piqa": 1 / 2, "hellaswag": 1 / 4, "winogrande": 1 / 2, "arc_easy": 1 / 4, "arc_challenge": 1 / 4}
CHANCE |= {"social_iqa": 1 / 3, "boolq": 1 / 2}


@dataclasses.dataclass(frozen=True)
class Metric:
    """One number, and how sure it is.

    Args:
        value: as lm-evaluation-harness gives it.
        standard_error: over the documents; of a perplexity, that of its logarithm times the perplexity. None where it
            is not known how the harness arrives at the value.
        low: lower end of the 95 % interval: Wilson's for shares; symmetric in the logarithm for perplexities.
        high: its upper end.
    """

    value: float
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """What one task gave.

    Args:
        task: the harness's name; with `_local` after it where the documents came from a file.
        documents: that were put to the model.
        of: documents that the task has.
        cut: prompts that were longer than the model's limit, and cut on the left.
        metrics: by name.
        deviation: in what the documents differ from the stock ones; empty where in nothing.
    """

    task: str
    documents: int
    of: int
    cut: int
    metrics: dict[str, Metric]
    deviation: str = ""

    @property
    def stock_name(self) -> str:
        """The harness's name."""
        return self.task.removesuffix(LOCAL)

    @property
    def shown(self) -> dict[str, Metric]:
        """The metrics of the usual table; all where the task is not in it."""
        names = TABLE.get(self.stock_name, tuple(self.metrics))
        return {name: self.metrics[name] for name in names}


@dataclasses.dataclass(frozen=True)
class LanguageResult:
    """What `evaluate_language` measured.

    Args:
        model: its name.
        harness: version of lm-evaluation-harness.
        window: tokens of the windows in which whole documents are read.
        seed: of the choice of documents.
        tasks: one result each.
    """

    model: str
    harness: str
    window: int
    seed: int
    tasks: tuple[TaskResult, ...]

    @property
    def average(self) -> float | None:
        """Mean of the eight accuracies of the usual table, or None where one is missing."""
        found = {task.stock_name: list(task.shown.values())[-1].value for task in self.tasks}
        names = [name for name in TABLE if name != "wikitext"]
        return sum(found[name] for name in names) / len(names) if all(name in found for name in names) else None

    @property
    def protocol(self) -> str:
        """What was done, and what deviates from the stock protocol, in one line."""
        whole = ""
        if any("word_perplexity" in task.metrics for task in self.tasks):
            whole = f", whole documents read in windows of {self.window:,} tokens, the memory fresh in each"
        deviations = list(dict.fromkeys(task.deviation for task in self.tasks if task.deviation))
        if any(task.documents < task.of for task in self.tasks):
            deviations.append(f"not all documents, but some drawn with seed {self.seed}")
        deviations += [f"{task.cut} prompts of {task.task} cut on the left" for task in self.tasks if task.cut]
        said = f"lm-evaluation-harness {self.harness}, prompts without bos as it sends them{whole}"
        return f"protocol: {said}; deviations: {'; '.join(deviations) or 'none'}"

    def save(self, folder: Path) -> None:
        """Write `language.json` and the plot `language.png`.

        Args:
            folder: made if it does not exist.
        """
        folder.mkdir(parents=True, exist_ok=True)
        content = dataclasses.asdict(self) | {"average": self.average, "protocol": self.protocol}
        disk.replace_json(folder / "language.json", content)
        disk.replace(folder / "language.png", _plot(self))


def evaluate_language(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    name: str = "",
    data: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 1,
    max_length: int | None = None,
    folder: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> LanguageResult:
    """Put tasks of lm-evaluation-harness to a model.

    Args:
        model: a causal language model of this package or of Hugging Face, on any device.
        tokenizer: its tokenizer.
        tasks: what the harness calls them.
        name: of the model, in the result. Default: none.
        data: a folder with documents (see `titans.data.language_tasks.local_task`); tasks that it has none for come
            from the hub. Default: all from the hub.
        limit: put at most so many documents of each task, drawn with the seed. Default: all.
        seed: of that choice, and of what the harness draws. Default 0.
        batch_size: sequences of one forward pass; changes speed and memory, not the result. Default 1.
        max_length: tokens of the windows of whole documents, and the most that is left of a prompt. Default: the
            model's limit; where it has none, windows of 2,048 and prompts as long as they are.
        folder: keeps the results of finished tasks, which are not done again. Default: none.
        progress: called with the task and the share of it that is done. Default: nothing.

    Returns:
        All metrics, with intervals.

    Raises:
        TitansError: there is no such task, its data cannot be had, the folder holds results under other settings, or
            the model fails.
    """
    require_harness()
    from importlib.metadata import version

    settings: dict[str, Any] = {
        "benchmark": "lm",
        "model": name,
        "data": None if data is None else str(data),
        "limit": limit,
    }
    settings |= {"seed": seed, "max_length": max_length, "harness": version("lm_eval")}
    if folder is not None:  # a model trained anew under the same name gives other results
        settings["weights"] = Reader(model, tokenizer).digest()
    if len(set(tasks)) < len(tasks) or not tasks:
        raise TitansError(f"the tasks are {', '.join(tasks) or 'none'}: give each once, and one at least")
    local = {task: None if data is None else local_task(data, task) for task in tasks}
    defined = Tasks(tasks)
    log = AnswerLog(folder, settings, [field.name for field in dataclasses.fields(TaskResult)])
    prompts, windows = (make_lm(model, tokenizer, batch_size, max_length, rolling) for rolling in (False, True))
    for task_name in tasks:
        if log.get(task_name) is None:
            task = defined.load(task_name, local[task_name])
            lm = windows if task.OUTPUT_TYPE == "loglikelihood_rolling" else prompts
            lm.progress = None if progress is None else functools.partial(progress, task_name)
            log.add(task_name, dataclasses.asdict(_run(lm, task, local[task_name], limit, seed)))
    results = tuple(_restore(log.get(task) or {}) for task in tasks)
    return LanguageResult(name, settings["harness"], windows.max_length, seed, results)


def _run(lm: Any, task: Any, local: LocalTask | None, limit: int | None, seed: int) -> TaskResult:
    name, cut = task.task_name, lm.cut
    measured = run_task(lm, task, limit, seed)
    metrics = {}
    for metric, value in measured.metrics.items():
        if not math.isfinite(value):
            raise TitansError(
                f"{name} gives {metric} {value}: the model's weights are damaged, or its training diverged"
            )
        metrics[metric] = _interval(value, [row[metric] for row in measured.documents if metric in row])
    return TaskResult(
        task=name if local is None else f"{name}{LOCAL}",
        documents=len(measured.documents),
        of=measured.of,
        cut=lm.cut - cut,
        metrics=metrics,
        deviation="" if local is None else local.deviation,
    )


def _interval(value: float, measured: list[Any]) -> Metric:
    """Add the interval that follows from the documents, where their mean, or that of their logarithms, is the value."""
    count = len(measured)
    if count < 2:
        return Metric(value)
    if all(isinstance(one, int | float) for one in measured):
        mean = math.fsum(measured) / count
        error = _standard_error([one - mean for one in measured]) / count
        if math.isclose(value, mean, abs_tol=1e-12):
            shares = all(one in (0, 1) for one in measured)
            low, high = wilson(math.fsum(measured), count) if shares else (mean - Z * error, mean + Z * error)
            return Metric(value, error, low, high)
        if math.isclose(value, math.exp(-mean)):  # of log-likelihoods
            return _perplexity(value, error)
    elif all(isinstance(one, list | tuple) and len(one) == 2 for one in measured):  # log-likelihood, weight
        weight = math.fsum(weight for _, weight in measured)
        mean = math.fsum(likelihood for likelihood, _ in measured) / weight
        error = _standard_error([likelihood - mean * of for likelihood, of in measured]) / weight
        if math.isclose(value, math.exp(-mean)):
            return _perplexity(value, error)
        if math.isclose(value, -mean / math.log(2)):
            bits = error / math.log(2)
            return Metric(value, bits, value - Z * bits, value + Z * bits)
    return Metric(value)


def _standard_error(residuals: list[float]) -> float:
    """The standard error of a sum of independent residuals."""
    count = len(residuals)
    return math.sqrt(math.fsum(one * one for one in residuals) * count / (count - 1))


def _perplexity(value: float, error: float) -> Metric:
    """Turn the standard error of a perplexity's logarithm into its interval."""
    return Metric(value, value * error, value * math.exp(-Z * error), value * math.exp(Z * error))


def _restore(kept: dict[str, Any]) -> TaskResult:
    metrics = {metric: Metric(**numbers) for metric, numbers in kept["metrics"].items()}
    return TaskResult(**{**kept, "metrics": metrics})


def _plot(result: LanguageResult) -> bytes:
    """Draw the accuracies, with what guessing gives, and the perplexities, each with its interval."""
    from matplotlib.figure import Figure

    shown = [(task, name, metric) for task in result.tasks for name, metric in task.shown.items()]
    kinds = [[one for one in shown if ("perplexity" in one[1]) == perplexity] for perplexity in (False, True)]
    kinds = [kind for kind in kinds if kind]
    figure = Figure(figsize=(8, 1.6 + 0.4 * len(shown)), layout="constrained")
    rows = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=[len(kind) + 0.5 for kind in kinds])[:, 0]
    for axes, kind in zip(rows, kinds, strict=True):
        for height, (task, _, metric) in enumerate(reversed(kind)):
            ends = (metric.value if end is None else end for end in (metric.low, metric.high))
            spread = [[abs(metric.value - end)] for end in ends]
            axes.errorbar(metric.value, height, xerr=spread, marker="o", capsize=3, color="C0")
            if task.stock_name in CHANCE:
                axes.plot(CHANCE[task.stock_name], height, marker="|", markersize=14, color="#777777")
        axes.set_yticks(range(len(kind)), [f"{task.task}, {name}" for task, name, _ in reversed(kind)])
        axes.margins(y=0.6 / len(kind))
        axes.grid(alpha=0.3)
        if "perplexity" in kind[0][1]:
            axes.set(xscale="log", xlabel="perplexity, 95 % interval")
        else:
            axes.set(xlim=(-0.02, 1.02), xlabel="share, 95 % interval; | is what guessing gives")
    figure.suptitle(result.model)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
