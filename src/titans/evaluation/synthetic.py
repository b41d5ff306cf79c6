"""Synthetic tasks: train a model on a small task, and test it at lengths it has not seen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from titans import plots
from titans.data.packing import IGNORED
from titans.data.synthetic.task import Size, SyntheticTask, shorten
from titans.error_text import refused_as
from titans.errors import TitansError
from titans.evaluation.inference import evaluating
from titans.evaluation.intervals import wilson
from titans.evaluation.progress import Finished, unheard
from titans.evaluation.results import save_result
from titans.evaluation.synthetic_training import (
    Budget,
    LossProgress,
    Training,
    check,
    generator_for,
    protocol,
    train_on,
)
from titans.training.objective import is_titans, logits_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from titans.models.write_policy import WritePolicy

PIECE_LENGTH = 1024
TEST_TOKENS = 16_384  # of one forward pass, over all rows
NAME = "synthetic"


@dataclasses.dataclass(frozen=True)
class Score:
    """The answers of one model at one size.

    Args:
        size: as `256/16` or `256`.
        length: tokens of each sequence.
        sequences: how many.
        asked: answers asked for.
        correct: right answers.
        final: right answers at the last position of a sequence where something is asked.
        loss: mean loss, nats per answer.
        low: lower end of the 95 % Wilson interval of the accuracy.
        high: its upper end. A trial is a question of a recall task, but a whole sequence of the others, since the
            answers at neighbouring positions are right and wrong together.
        scaled: the accuracy, with 0 for chance and 1 for all.
    """

    size: str
    length: int
    sequences: int
    asked: int
    correct: int
    final: int
    loss: float
    low: float
    high: float
    scaled: float

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.asked

    @property
    def final_accuracy(self) -> float:
        """Share of sequences whose last answer was right."""
        return self.final / self.sequences


@dataclasses.dataclass(frozen=True)
class SeedRun:
    """One training and its test.

    Args:
        seed: of the model's initialisation and of the training data.
        training: how it went.
        scores: one for each size tested.
    """

    seed: int
    training: Training
    scores: tuple[Score, ...]


@dataclasses.dataclass(frozen=True)
class SyntheticResult:
    """What `train_and_score` measured.

    Args:
        task: the synthetic task's name.
        kind: "recall", "state" or "text".
        model: what the model is called.
        parameters: how many it has.
        chance: accuracy of a guess.
        budget: how it was trained.
        train_sizes: the sizes it was trained at.
        runs: one for each seed.
        protocol: what was done, and what deviates from what is published, in one line.
    """

    task: str
    kind: str
    model: str
    parameters: int
    chance: float
    budget: Budget
    train_sizes: tuple[str, ...]
    runs: tuple[SeedRun, ...]
    protocol: str = ""

    def mean(self, size: str) -> float:
        """Return the mean accuracy over the seeds at one size."""
        found = [score.accuracy for run in self.runs for score in run.scores if score.size == size]
        return math.fsum(found) / len(found)

    def save(self, folder: Path) -> None:
        """Write `synthetic.json` and the plot `synthetic.png`, each whole or not at all.

        Args:
            folder: made if it does not exist.
        """
        save_result(folder, NAME, self._as_json(), _plot(self))

    def _as_json(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        for run, written in zip(self.runs, content["runs"], strict=True):
            written["scores"] = [score_as_json(score) for score in run.scores]
        return content


def score_as_json(score: Score) -> dict[str, Any]:
    """Return a score's fields and its shares."""
    return dataclasses.asdict(score) | {"accuracy": score.accuracy, "final_accuracy": score.final_accuracy}


def train_and_score(
    make_model: Callable[[int], Any],
    task: SyntheticTask,
    train_sizes: Sequence[Size],
    test_sizes: Sequence[Size],
    budget: Budget,
    *,
    seeds: Sequence[int] = (0,),
    name: str = "model",
    sequences: int = 256,
    progress: Callable[[int], LossProgress] | None = None,
    finished: Finished = unheard,
) -> SyntheticResult:
    """Train a new model on a synthetic task for each seed, and test it at several sizes.

    Args:
        make_model: makes the untrained model of a seed.
        task: the task.
        train_sizes: to train at.
        test_sizes: to test at; all models and seeds are asked the same.
        budget: for how long and how to train.
        seeds: of initialisations and training data. Default one, 0.
        name: what to call the model.
        sequences: test sequences at each size. Default 256.
        progress: returns what is called after each step of a seed's training. Default: nothing.
        finished: called with a sentence for each training and each size tested. Default: nothing.

    Returns:
        The scores.

    Raises:
        TitansError: something does not fit, or the training diverged.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise TitansError(f"the seeds are {list(seeds)}, expected different numbers, at least one")
    runs, parameters = [], 0
    for seed in seeds:
        model = make_model(seed)
        check(model, task, [*train_sizes, *test_sizes])
        parameters = model.num_parameters()
        training = train_on(model, task, train_sizes, budget, seed, None if progress is None else progress(seed))
        finished(f"seed {seed}: trained, {training.curve[-1][1]:.3f} nats per answer")
        scores = []
        for size in test_sizes:
            scores.append(score(model, task.part("test"), size, sequences=sequences))
            finished(f"seed {seed}, {size}: {scores[-1].accuracy:.1%} right")
        runs.append(SeedRun(seed, training, tuple(scores)))
    sizes = tuple(dict.fromkeys(str(size) for size in train_sizes))
    said = protocol(task, budget, sizes, sequences)
    return SyntheticResult(task.name, task.kind, name, parameters, task.chance, budget, sizes, tuple(runs), said)


def score(
    model: Any,
    task: SyntheticTask,
    size: Size,
    part: str = "test",
    *,
    sequences: int = 256,
    piece_length: int = PIECE_LENGTH,
    seed: int = 0,
    policy: WritePolicy | None = None,
) -> Score:
    """Ask a model the questions of a synthetic task at one size.

    A model of this package reads long sequences in pieces, with its state carried; any other reads each as a whole.

    Args:
        model: a causal language model; used in evaluation mode.
        task: the part of the task to ask.
        size: how large the sequences are.
        part: "validation" or "test": sequences of one are none of the other.
        sequences: how many. Default 256.
        piece_length: tokens of one forward pass; changes speed and memory, not the result. Default 1,024.
        seed: of the questions. Default 0, so that all models have the same.
        policy: which tokens the memories of a Titans model write. Default: all.

    Returns:
        The score.

    Raises:
        TitansError: the model fails, as with weights that hold NaN.
    """
    everything = task.batch(sequences, size, generator_for(seed, part, size))
    rows = max(1, TEST_TOKENS // _cut(model, size.length, piece_length))
    asked = correct = final = 0
    loss = 0.0
    with evaluating(model):
        for ids, labels in zip(*(both.split(rows) for both in everything), strict=True):
            right, nats = _answers(model, ids, labels, piece_length, policy)
            is_asked = labels != IGNORED
            last = size.length - 1 - is_asked.flip(1).int().argmax(1, keepdim=True)
            asked, correct = asked + int(is_asked.sum()), correct + int(right.sum())
            final, loss = final + int(right.gather(1, last).sum()), loss + nats
    if not math.isfinite(loss):
        raise TitansError(f"the loss at {size} is {loss}: the model's training diverged")
    trials = asked if task.kind == "recall" else sequences
    low, high = wilson(correct / asked * trials, trials)
    scaled = (correct / asked - task.chance) / (1 - task.chance)
    return Score(str(size), size.length, sequences, asked, correct, final, loss / asked, low, high, scaled)


def _answers(
    model: Any, ids: Tensor, labels: Tensor, piece_length: int, policy: WritePolicy | None
) -> tuple[Tensor, float]:
    """Return where the most likely answer was right, `[B, T]`, and the sum of the losses."""
    hits, nats = [], 0.0
    state = None if policy is None else policy.start(model.initial_state(len(ids)))
    cut = _cut(model, ids.shape[1], piece_length)
    for piece, answers in zip(ids.to(model.device).split(cut, 1), labels.to(model.device).split(cut, 1), strict=True):
        asked = answers != IGNORED
        carries = state is not None or cut < ids.shape[1]
        carried = {"cache": state, "use_cache": True} if carries else {"use_cache": False}
        with refused_as("the model cannot read the synthetic task"):
            logits, output = logits_at(model, asked, input_ids=piece, **carried)
            nats += float(F.cross_entropy(logits, answers[asked], reduction="sum"))
        state = getattr(output, "cache", None)
        hits.append(torch.zeros_like(asked).masked_scatter(asked, logits.argmax(-1) == answers[asked]))
    return torch.cat(hits, 1).cpu(), nats


def _cut(model: Any, length: int, piece_length: int) -> int:
    return min(length, piece_length) if is_titans(model) else length


def _plot(result: SyntheticResult) -> Figure:
    """Draw accuracy by length, one line per seed with its intervals, and the training losses."""
    drawn, (left, right) = plots.figure(2, size=(9, 3.8))
    for number, run in enumerate(result.runs):
        sizes, accuracy = [score.size for score in run.scores], [score.accuracy for score in run.scores]
        interval = [score.low for score in run.scores], [score.high for score in run.scores]
        plots.line(left, sizes, accuracy, number, interval=interval, label=f"seed {run.seed}")
        steps, losses = zip(*run.training.curve, strict=True)
        plots.line(right, steps, losses, number, markers=False, label=f"seed {run.seed}")
    left.axhline(result.chance, color=plots.MUTED, linestyle=":", label="chance")
    left.set(
        ylim=(-0.02, 1.02), xlabel="tokens (/ pairs)", ylabel="right answers", title=f"{result.model}, {result.task}"
    )
    right.set(xlabel="steps", ylabel="nats per answer", title=f"training at {shorten(result.train_sizes)}")
    for axes in (left, right):
        plots.legend(axes)
    return drawn
