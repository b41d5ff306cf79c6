"""RULER on a model: which share of what is asked for it finds, by length, and by the needle's depth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans import plots
from titans.data.books import Words
from titans.data.ruler import RulerTask, canonical, make_ruler_task, needs_books
from titans.errors import TitansError
from titans.evaluation.intervals import wilson
from titans.evaluation.progress import Finished, Progress, unheard, unseen, within
from titans.evaluation.result_store import ResultStore
from titans.evaluation.results import save_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from titans.evaluation.streaming_lm import StreamingLM

OFFICIAL_SAMPLES = 500
BANDS = 10  # of depth, in the heat map
KEPT = ("depth", "tokens", "references", "text", "score")  # of an answer
PROTOCOL = (
    "RULER (pk, n, w taken to be niah_single_1, _2, _3), the plain template, prompt, answer prefix and new tokens ≤ "
    "length in the model's own tokens without bos, greedy, 128 new tokens (vt 30, cwe 120, fwe 50), the share of the "
    "references that the answer holds, case aside"
)


@dataclasses.dataclass(frozen=True)
class RulerAnswer:
    """One question, answered or not.

    Args:
        task: of `titans.data.ruler.RULER_TASKS`.
        length: tokens asked for.
        index: which sample.
        depth: of the needle, percent; None where there is none, or not one alone.
        tokens: of the prompt and the answer's beginning.
        references: the right answers.
        text: what the model wrote.
        score: share of the references that the text holds.
    """

    task: str
    length: int
    index: int
    depth: float | None
    tokens: int
    references: tuple[str, ...]
    text: str
    score: float


@dataclasses.dataclass(frozen=True)
class RulerResult:
    """What `needle` measured.

    Args:
        model: its name.
        tasks: in the order asked for.
        lengths: tokens of the samples, with their answers.
        samples: of each task and length.
        seed: of the samples.
        write: what the memories took in: "always", "gated" or "never".
        deviations: from RULER's protocol.
        answers: all of them.
    """

    model: str
    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    samples: int
    seed: int
    write: str
    deviations: tuple[str, ...]
    answers: tuple[RulerAnswer, ...]

    def of(self, task: str, length: int) -> list[RulerAnswer]:
        """Return the answers of a task at one length."""
        return [answer for answer in self.answers if (answer.task, answer.length) == (task, length)]

    def accuracy(self, task: str, length: int) -> tuple[float, float, float]:
        """Return the mean score of a task at one length, and its 95 % Wilson interval."""
        correct = math.fsum(answer.score for answer in self.of(task, length))
        return correct / self.samples, *wilson(correct, self.samples)

    def band(self, task: str, length: int, band: int) -> tuple[float, int] | None:
        """Return the mean score in a tenth of the depths, from the start of the text, and of how many; None of none."""
        scores = [
            a.score
            for a in self.of(task, length)
            if a.depth is not None and min(int(a.depth * BANDS / 100), BANDS - 1) == band
        ]
        return (math.fsum(scores) / len(scores), len(scores)) if scores else None

    def has_depths(self, task: str) -> bool:
        """Whether a task asks for one needle, which lies somewhere."""
        return any(answer.depth is not None for answer in self.answers if answer.task == task)

    def save(self, folder: Path) -> None:
        """Write `ruler.json` and the picture `ruler.png`, each whole or not at all.

        Args:
            folder: made if it does not exist.
        """
        save_result(folder, "ruler", self._as_json(), _plot(self))

    def _as_json(self) -> dict[str, Any]:
        cells = []
        for task in self.tasks:
            for length in self.lengths:
                accuracy, low, high = self.accuracy(task, length)
                bands = [self.band(task, length, band) for band in range(BANDS)]
                depths = [None if cell is None else {"accuracy": cell[0], "samples": cell[1]} for cell in bands]
                cell = {"task": task, "length": length, "accuracy": accuracy, "low": low, "high": high}
                cells.append({**cell, "depths": depths})
        content = {**dataclasses.asdict(self), "protocol": PROTOCOL, "cells": cells}
        return {**content, "answers": content.pop("answers")}  # the long part last


def references_found(text: str, references: Sequence[str]) -> float:
    """Return the share of references that a text holds, case aside."""
    held = [reference.lower() in text.lower() for reference in references]
    return sum(held) / len(held)


def run_ruler(
    lm: StreamingLM,
    tasks: Sequence[str],
    lengths: Sequence[int],
    words: Words | None = None,
    *,
    samples: int = OFFICIAL_SAMPLES,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress = unseen,
    finished: Finished = unheard,
) -> RulerResult:
    """Ask a model for needles, variables and words.

    Args:
        lm: the model.
        tasks: of `titans.data.ruler.RULER_TASKS`, or by RULER's names.
        lengths: tokens of a sample, those of its answer among them.
        words: the text of the tasks that hide their needles in books.
        samples: of each task and length. Default 500, as RULER.
        seed: of the samples: the same for every model with the same tokenizer.
        folder: where answers are kept as they come, and from where an interrupted evaluation goes on. Default: nowhere.
        progress: called with the share of the tokens read, and what is being read. Default: nothing.
        finished: called with a sentence for each task and length that is done. Default: nothing.

    Returns:
        All answers.

    Raises:
        TitansError: something does not fit, or the folder holds answers of another model, text or seed.
    """
    tasks = [canonical(task) for task in tasks]
    for name, given in (("tasks", tasks), ("lengths", lengths)):
        if not given or len(set(given)) < len(given):
            raise TitansError(f"the {name} are {', '.join(map(str, given)) or 'none'}: expected one or more, each once")
    made = {task: make_ruler_task(task, lm.count, words) for task in tasks}
    for task in made.values():
        task.check(min(lengths))
    if lm.longest is not None and max(lengths) > lm.longest:
        raise TitansError(
            f"the model reads at most {lm.longest:,} tokens (max_position_embeddings), and the lengths go up to "
            f"{max(lengths):,}: ask for shorter ones"
        )
    store = ResultStore(folder, {"benchmark": "ruler", "model": lm.digest(), "seed": seed}, KEPT)
    answers, done, total = [], 0, samples * sum(lengths) * len(made)
    for task in made.values():
        for length in lengths:
            for index in range(samples):
                what = f"{task.name}, {length:,} tokens, {index + 1} of {samples}"
                show = within(progress, done, length, total, what)
                key, ask = f"{task.name}/{task.digest}/{length}/{index}", partial(_ask, lm, task, length, seed, index)
                found = store.result(key, partial(ask, show))
                references = tuple(found["references"])
                answers.append(RulerAnswer(task.name, length, index, **{**found, "references": references}))
                done += length
            share = math.fsum(answer.score for answer in answers[-samples:]) / samples
            finished(f"{task.name}, {length:,} tokens: {share:.1%} found, {samples} samples")
    deviations = _deviations(tasks, words, samples)
    return RulerResult(lm.name, tuple(tasks), tuple(lengths), samples, seed, lm.write, deviations, tuple(answers))


def _ask(
    lm: StreamingLM, task: RulerTask, length: int, seed: int, index: int, show: Callable[[float], None]
) -> dict[str, Any]:
    sample = task.sample(length, seed, index)
    text = lm.answer(sample.text, task.new_tokens, progress=show)
    return {
        "depth": sample.depth,
        "tokens": sample.tokens,
        "references": sample.references,
        "text": text,
        "score": references_found(text, sample.references),
    }


def _deviations(tasks: Sequence[str], words: Words | None, samples: int) -> tuple[str, ...]:
    found = []
    in_books = [task for task in tasks if needs_books(task)]
    if words is not None and in_books:
        text = "books of Project Gutenberg" if words.gutenberg else "the given text"
        if not words.essays:
            found.append(f"{', '.join(in_books)} in {text} in place of RULER's essays")
        found.append("sentences end by punctuation and capitals, not by NLTK's model")
    found.append(
        "each sample as long as the length allows; RULER finds one size for all by bisection and takes 500 words or 25 "
        "lines off a sample that is too long"
    )
    if samples != OFFICIAL_SAMPLES:
        found.append(f"{samples} {'sample' if samples == 1 else 'samples'}, not {OFFICIAL_SAMPLES}")
    return tuple(found)


def _plot(result: RulerResult) -> Figure:
    """Draw the heat maps of the tasks, and the accuracy by length beside them."""
    mapped = [task for task in result.tasks if result.has_depths(task)]
    width = 1.8 + 0.55 * len(result.lengths)
    widths = [*[width] * len(mapped), 5]
    drawn, (*maps, axes) = plots.figure(len(widths), size=(sum(widths), 4.2), width_ratios=widths)
    images = [_heat_map(panel, result, task) for panel, task in zip(maps, mapped, strict=True)]
    if images:
        drawn.colorbar(images[0], ax=maps, label="needles found", shrink=0.8)
    for number, task in enumerate(result.tasks):
        means, low, high = zip(*(result.accuracy(task, length) for length in result.lengths), strict=True)
        x = plots.beside(range(len(means)), number, len(result.tasks), 0.08)
        plots.line(axes, x, means, number, interval=(low, high), label=task)
    axes.set(xlabel="length, tokens", ylabel="found, with 95 % intervals", ylim=(-0.03, 1.03))
    plots.length_ticks(axes, result.lengths)
    plots.legend(axes)
    drawn.suptitle(f"RULER: {Path(result.model).name}, {result.samples} samples of each length")
    return drawn


def _heat_map(panel: Any, result: RulerResult, task: str) -> Any:
    cells = [[result.band(task, length, band) for length in result.lengths] for band in range(BANDS)]
    values = [[math.nan if cell is None else cell[0] for cell in row] for row in cells]
    panel.set_facecolor("lightgrey")  # where no needle was
    image = panel.imshow(values, vmin=0, vmax=1, aspect="auto", cmap="viridis")
    plots.length_ticks(panel, result.lengths)
    panel.grid(False)
    panel.set_yticks([edge - 0.5 for edge in range(0, BANDS + 1, 2)], [f"{10 * edge} %" for edge in range(0, 11, 2)])
    panel.set(title=task, xlabel="length, tokens", ylabel="depth of the needle")
    return image
