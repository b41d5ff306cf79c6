"""What a comparison found: runs, means over the seeds, and their intervals."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # 97.5 % of Student's t, 1 … 10


@dataclasses.dataclass(frozen=True)
class Run:
    """One training and its test.

    Args:
        learning_rate: its peak.
        seed: of initialisation and data.
        diverged: at what it ended early; None where it did not.
        validation_loss: mean over the validation sizes, nats per answer; infinite where it diverged.
        values: by test size, the accuracy, or for text the bits per byte; empty where it diverged.
        final: by test size, the accuracy at the last position.
        tokens_per_second: of the training.
        curve: training loss by step.
        state_bytes: bytes of one stream's state; None where it grows.
    """

    learning_rate: float
    seed: int
    diverged: str | None
    validation_loss: float
    values: Mapping[str, float]
    final: Mapping[str, float]
    tokens_per_second: float | None
    curve: Sequence[tuple[int, float]]
    state_bytes: int | None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Run:
        """Read the content of a run's file."""
        settings = content["settings"]
        rate, seed = settings["budget"]["learning_rate"], settings["seed"]
        if "diverged" in content:
            return cls(rate, seed, content["diverged"], math.inf, {}, {}, None, (), None)
        text, training, test = settings["task"]["name"] == "text", content["training"], content["test"]
        return cls(
            rate,
            seed,
            None,
            statistics.fmean(each["loss"] for each in content["validation"]),
            {each["size"]: each["loss"] / math.log(2) if text else each["accuracy"] for each in test},
            {each["size"]: each["final_accuracy"] for each in test},
            training["tokens"] / training["seconds"],
            [(step, loss) for step, loss in training["curve"]],
            content["state_bytes"],
        )


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean over seeds.

    Args:
        mean: the mean.
        half_width: of its 95 % interval (Student's t); None with one seed.
        seeds: how many went in.
    """

    mean: float
    half_width: float | None
    seeds: int

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Mean | None:
        """Return the mean of numbers, None of none."""
        if not numbers:
            return None
        half = None
        if len(numbers) > 1:
            half = student_t(len(numbers) - 1) * statistics.stdev(numbers) / math.sqrt(len(numbers))
        return cls(statistics.fmean(numbers), half, len(numbers))


@dataclasses.dataclass(frozen=True)
class ModelResult:
    """All runs of one model.

    Args:
        name: what it is called.
        parameters: how many it has, embeddings not counted.
        sweep: one run for each learning rate, on the first seed.
        runs: one for each seed, with the best of them.
    """

    name: str
    parameters: int
    sweep: tuple[Run, ...]
    runs: tuple[Run, ...]

    @property
    def diverged(self) -> int:
        """How many of `runs` diverged; means are over the others."""
        return sum(run.diverged is not None for run in self.runs)

    def mean(self, size: str) -> Mean | None:
        """Return the mean at one test size, None where every run diverged."""
        return Mean.of([run.values[size] for run in self.runs if run.diverged is None])

    def final(self, size: str) -> Mean | None:
        """Return the mean accuracy at the last position."""
        return Mean.of([run.final[size] for run in self.runs if run.diverged is None])


@dataclasses.dataclass(frozen=True)
class ComparisonResult:
    """What `compare` found.

    Args:
        task: the task and its options.
        kind: "recall", "state" or "text".
        chance: accuracy of a guess.
        budget: of every training.
        train: sizes trained at.
        lengths: sizes tested at.
        models: one for each model.
    """

    task: Mapping[str, Any]
    kind: str
    chance: float
    budget: Mapping[str, Any]
    train: tuple[str, ...]
    lengths: tuple[str, ...]
    models: tuple[ModelResult, ...]

    @property
    def measure(self) -> str:
        """What the values are."""
        return "bits per byte" if self.kind == "text" else "accuracy"


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, by an expansion in 1/n beyond 10 degrees of freedom."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z, n = 1.959964, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / n + second / n**2 + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
