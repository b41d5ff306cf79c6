"""What the evaluation on lm-evaluation-harness gives: metrics with intervals, and what was done to get them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from titans import plots
from titans.evaluation.results import save_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOCAL = "_local"  # after the name of a task whose documents come from a file

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


_SHARES = ("acc", "exact_match")  # how the names of metrics begin that are shares of the documents


def is_share(metric: str) -> bool:
    """Tell whether a metric is a share, to be shown in %."""
    return metric.startswith(_SHARES) or _length(metric) is not None


def in_words(metric: str) -> str:
    """Name a metric: as the harness does, but for RULER's, which are called as the length of the text and no more."""
    length = _length(metric)
    return metric if length is None else f"found at {length:,} tokens"


def as_text(metric: str, value: float) -> str:
    """Write the value of a metric."""
    return f"{value:.1%}" if is_share(metric) else f"{value:.4g}"


def _length(metric: str) -> int | None:
    return int(metric) if metric.isdecimal() else None


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
    """What one task, or one group of tasks together, gave.

    Args:
        task: the harness's name; with `_local` after it where the documents came from a file.
        documents: that were put to the model.
        of: documents that the task has.
        cut: prompts that were longer than the model's limit, and cut on the left.
        metrics: by name; that of a filter has its name after a comma.
        deviation: in what was deviated from the stock protocol; empty where in nothing.
        examples: how many a prompt has, and where they are from; empty where it has none.
        whole: were whole documents read, in windows?
        group: under which name of several tasks this one was asked for; empty where it was by its own.
        subtasks: of how many tasks this is the score; 0 where it is that of one.
    """

    task: str
    documents: int
    of: int
    cut: int
    metrics: dict[str, Metric]
    deviation: str = ""
    examples: str = ""
    whole: bool = False
    group: str = ""
    subtasks: int = 0

    @property
    def stock_name(self) -> str:
        """The harness's name."""
        return self.task.removesuffix(LOCAL)

    @property
    def shown(self) -> dict[str, Metric]:
        """The metrics of the usual table; all where the task is not in it."""
        names = TABLE.get(self.stock_name, ())
        return {name: self.metrics[name] for name in names if name in self.metrics} or self.metrics


@dataclasses.dataclass(frozen=True)
class LanguageResult:
    """What `evaluate_language` measured.

    Args:
        model: its name.
        harness: version of lm-evaluation-harness.
        window: tokens of the windows in which whole documents are read.
        seed: of the choice of documents.
        start: with which special tokens the model's tokenizer begins and ends a prompt, in words.
        tasks: one result each; of a group those of its tasks, then its own.
        write: what the memories took in: "always", "gated" or "never"; empty for a model that is not of ours.
    """

    model: str
    harness: str
    window: int
    seed: int
    start: str
    tasks: tuple[TaskResult, ...]
    write: str = ""

    @property
    def average(self) -> float | None:
        """Mean of the eight accuracies of the usual table, or None where one is missing."""
        asked = [task for task in self.tasks if not task.group]
        found = {task.stock_name: list(task.shown.values())[-1].value for task in asked}
        names = [name for name in TABLE if name != "wikitext"]
        return sum(found[name] for name in names) / len(names) if all(name in found for name in names) else None

    @property
    def protocol(self) -> str:
        """What was done, and what deviates from the stock protocol, in one line."""
        single = [task for task in self.tasks if not task.subtasks]
        said = [f"lm-evaluation-harness {self.harness}", self.start]
        if self.write:
            said.append(f"memories written by --write {self.write}")
        if any(task.whole for task in single):
            said.append(f"whole documents read in windows of {self.window:,} tokens, each read from its start")
        said += [f"{task.examples} in the prompts of {task.task}" for task in single if task.examples]
        deviations = list(dict.fromkeys(task.deviation for task in single if task.deviation))
        if any(task.documents < task.of for task in single):
            deviations.append(f"not all documents, but some drawn with seed {self.seed}")
        deviations += [f"{task.cut} prompts of {task.task} cut on the left" for task in single if task.cut]
        return f"protocol: {', '.join(said)}; deviations: {'; '.join(deviations) or 'none'}"

    def save(self, folder: Path) -> None:
        """Write `language.json` and the plot `language.png`.

        Args:
            folder: made if it does not exist.
        """
        content = dataclasses.asdict(self) | {"average": self.average, "protocol": self.protocol}
        save_result(folder, "language", content, _plot(self))


def _plot(result: LanguageResult) -> Figure:
    """Draw the accuracies, with what guessing gives, and the perplexities, each with its interval."""
    shown = [(task, name, metric) for task in result.tasks for name, metric in task.shown.items()]
    kinds = [[one for one in shown if ("perplexity" in one[1]) == perplexity] for perplexity in (False, True)]
    kinds = [kind for kind in kinds if kind]
    size = (8, 1.6 + 0.4 * len(shown))
    drawn, rows = plots.figure(rows=len(kinds), size=size, height_ratios=[len(kind) + 0.5 for kind in kinds])
    for axes, kind in zip(rows, kinds, strict=True):
        for height, (task, _, metric) in enumerate(reversed(kind)):
            ends = (metric.value if end is None else end for end in (metric.low, metric.high))
            spread = [[abs(metric.value - end)] for end in ends]
            axes.errorbar(metric.value, height, xerr=spread, marker="o", capsize=3, color=plots.color(0))
            if task.stock_name in CHANCE:
                axes.plot(CHANCE[task.stock_name], height, marker="|", markersize=14, color=plots.MUTED)
        axes.set_yticks(range(len(kind)), [f"{task.task}, {in_words(name)}" for task, name, _ in reversed(kind)])
        axes.margins(y=0.6 / len(kind))
        if "perplexity" in kind[0][1]:
            axes.set(xscale="log", xlabel="perplexity, 95 % interval")
        else:
            axes.set(xlabel="share, 95 % interval; | is what guessing gives")
            if all(0 <= metric.value <= 1 for _, _, metric in kind):
                axes.set(xlim=(-0.02, 1.02))
    drawn.suptitle(result.model)
    return drawn
