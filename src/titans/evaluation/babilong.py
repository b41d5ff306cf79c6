"""BABILong: questions about bAbI facts in long texts, asked of any causal language model."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans import plots
from titans.data.babi import Story
from titans.data.babilong import (
    Background,
    Length,
    fitting_stories,
    make_sample,
)
from titans.data.babilong_prompts import wording
from titans.data.corpora import local_files
from titans.errors import TitansError
from titans.evaluation.babilong_metric import is_right
from titans.evaluation.babilong_questions import NEW_TOKENS, Questions
from titans.evaluation.intervals import wilson
from titans.evaluation.progress import Finished, Progress, unheard, unseen, within
from titans.evaluation.result_store import ResultStore
from titans.evaluation.results import save_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from titans.evaluation.streaming_lm import StreamingLM

KEPT = ("question", "target", "answer", "prompt_tokens", "fact_positions")  # of an answer


@dataclasses.dataclass(frozen=True)
class BabilongScore:
    """The answers to one task at one length.

    Args:
        task: the task.
        length: the length's name.
        prompt_tokens: of the prompts, their mean.
        asked: questions.
        correct: right answers.
        low: lower end of the 95 % Wilson interval of the accuracy.
        high: its upper end.
        majority: share of the commonest answer among the right ones: what a model can have that has read nothing.
    """

    task: str
    length: str
    prompt_tokens: float
    asked: int
    correct: int
    low: float
    high: float
    majority: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.asked


@dataclasses.dataclass(frozen=True)
class BabilongResult:
    """What `run_babilong` measured.

    Args:
        model: what the model is called.
        write: what its memories took in: "always", "gated" or "never".
        questions: what was asked.
        scores: by task and length.
    """

    model: str
    write: str
    questions: Questions
    scores: tuple[BabilongScore, ...]

    def save(self, folder: Path) -> None:
        """Write `babilong.json` and the plot `babilong.png`, each whole or not at all.

        Args:
            folder: made if it does not exist.
        """
        content = {
            "benchmark": self.questions.name,
            "protocol": self.questions.protocol,
            "model": self.model,
            "write": self.write,
            "questions": {
                **dataclasses.asdict(self.questions),
                "babi": None if self.questions.babi is None else str(self.questions.babi),
            },
            "scores": [{**dataclasses.asdict(score), "accuracy": score.accuracy} for score in self.scores],
        }
        save_result(folder, "babilong", content, _plot(self))


def run_babilong(
    lm: StreamingLM,
    questions: Questions,
    folder: Path | None = None,
    progress: Progress = unseen,
    finished: Finished = unheard,
) -> BabilongResult:
    """Ask a model the questions of BABILong.

    Args:
        lm: the model.
        questions: what to ask.
        folder: where answers are kept as they are given, so that a run that was interrupted goes on where it was, and
            more tasks, lengths or samples can be added. Default: nowhere.
        progress: called with the share of the questions that has been asked, and the task and length. Default: nothing.
        finished: called with a sentence for each task and length that is done. Default: nothing.

    Returns:
        The scores.

    Raises:
        TitansError: something does not fit: stories and lengths, prompts and the model, the folder and the settings.
    """
    background = None if questions.background is None else Background.read(questions.background, lm.count)
    chosen = {
        (task, name): fitting_stories(
            questions.stories(task, name), Length.parse(name), lm.count, questions.samples, task
        )
        for task in questions.tasks
        for name in questions.lengths
    }
    if lm.longest is not None:
        _check_room(lm, lm.longest, questions, chosen)
    store = ResultStore(folder, _settings(lm, questions), KEPT)
    scores, done, total = [], 0, len(chosen) * questions.samples
    for (task, name), stories in chosen.items():
        answers = []
        for number, story in enumerate(stories):
            show = within(progress, done, 1, total, f"{task} at {name}")
            ask = partial(_ask, lm, questions, background, (task, name, number), story, show)
            given = store.result(f"{task}/{name}/{number}", ask)
            if (given["question"], given["target"]) != (story.question, story.answer):
                raise TitansError(f"{folder} holds answers to other stories: use another folder")
            answers.append(given)
            done += 1
        scores.append(_score(task, name, answers))
        finished(f"{task} at {name}: {scores[-1].accuracy:.1%} right, {scores[-1].asked} questions")
    return BabilongResult(lm.name, lm.write, questions, tuple(scores))


def _check_room(
    lm: StreamingLM, longest: int, questions: Questions, chosen: dict[tuple[str, str], list[Story]]
) -> None:
    """Refuse prompts, about as long as they will be, that are longer than the model's positions."""
    for (task, name), stories in chosen.items():
        tokens = Length.parse(name).tokens
        for story in stories:
            context = tokens or lm.count(" ".join(story.facts))
            needed = context + lm.count(questions.prompt(task, "", story.question)) + NEW_TOKENS
            if needed > longest:
                raise TitansError(
                    f"the model reads at most {longest:,} tokens (max_position_embeddings), and {task} at {name} takes "
                    f"{needed:,}: leave out {name}, or ask with fewer --shots"
                )


def _settings(lm: StreamingLM, questions: Questions) -> dict[str, Any]:
    """What an answer depends on besides its task, length and number."""
    return {
        "benchmark": questions.name,
        "model": lm.name,
        "weights": lm.digest(),
        "write": None if lm.policy is None else dataclasses.asdict(lm.policy),
        "babi": None if questions.babi is None else str(questions.babi),
        "background": questions.background,
        "background_bytes": None if questions.background is None else _size(questions.background),
        "shots": questions.shots,
        "bare": questions.bare,
        "wording": wording(),
        "seed": questions.seed,
    }


def _size(source: str) -> int | None:
    files = local_files(source)
    return None if files is None else sum(path.stat().st_size for path in files)


def _ask(
    lm: StreamingLM,
    questions: Questions,
    background: Background | None,
    which: tuple[str, str, int],
    story: Story,
    show: Callable[[float], None],
) -> dict[str, Any]:
    task, length, number = which
    rng = random.Random(f"{questions.seed}/{task}/{length}/{number}")
    sample = make_sample(story, Length.parse(length).tokens, background, lm.count, rng)
    text = questions.prompt(task, sample.context, story.question)
    return {
        "question": story.question,
        "target": story.answer,
        "answer": lm.answer(text, NEW_TOKENS, progress=show),
        "prompt_tokens": lm.count(text),
        "fact_positions": sample.positions,
    }


def _score(task: str, length: str, answers: list[dict[str, Any]]) -> BabilongScore:
    correct = sum(is_right(task, given["question"], given["target"], given["answer"]) for given in answers)
    tokens = sum(given["prompt_tokens"] for given in answers) / len(answers)
    majority = max(collections.Counter(given["target"] for given in answers).values()) / len(answers)
    return BabilongScore(task, length, tokens, len(answers), correct, *wilson(correct, len(answers)), majority)


def _plot(result: BabilongResult) -> Figure:
    """Draw accuracy by length, one line per task with its intervals, and dotted what the commonest answer has."""
    drawn, (axes,) = plots.figure(size=(7.5, 4.5))
    tasks, lengths = result.questions.tasks, list(result.questions.lengths)
    for number, task in enumerate(tasks):
        scores = [score for score in result.scores if score.task == task]
        x = plots.beside([lengths.index(score.length) for score in scores], number, len(tasks))
        interval = [s.low for s in scores], [s.high for s in scores]
        plots.line(axes, x, [s.accuracy for s in scores], number, interval=interval, label=task)
        plots.line(axes, x, [s.majority for s in scores], number, fmt=".:", alpha=0.7)
    plots.line(axes, [], [], fmt=".:", color=plots.MUTED, label="commonest answer")
    axes.set_xticks(range(len(lengths)), lengths)
    title = f"{result.questions.name}: {Path(result.model).name}, {result.questions.samples} questions each"
    axes.set(ylim=(-0.02, 1.02), xlabel="length (tokens of the model)", ylabel="right answers", title=title)
    plots.legend(drawn, loc="outside right center")
    return drawn
