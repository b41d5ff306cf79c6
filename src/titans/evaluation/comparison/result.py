"""What a comparison found: runs, and means over the seeds."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from titans.evaluation.intervals import Mean


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
    diverged: str | None = None
    validation_loss: float = math.inf
    values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    final: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tokens_per_second: float | None = None
    curve: Sequence[tuple[int, float]] = ()
    state_bytes: int | None = None

    @classmethod
    def of(cls, rate: float, seed: int, kind: str, found: Mapping[str, Any]) -> Run:
        """Make a run of what was measured and kept; `kind` is that of the task."""
        if found["diverged"] is not None:
            return cls(rate, seed, found["diverged"])
        training, test = found["training"], found["test"]
        return cls(
            rate,
            seed,
            None,
            statistics.fmean(each["loss"] for each in found["validation"]),
            {each["size"]: each["loss"] / math.log(2) if kind == "text" else each["accuracy"] for each in test},
            {each["size"]: each["final_accuracy"] for each in test},
            training["tokens"] / training["seconds"],
            [(step, loss) for step, loss in training["curve"]],
            found["state_bytes"],
        )


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
