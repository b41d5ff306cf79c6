"""Training a causal language model on a synthetic task, within a budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from titans.data.synthetic.task import Size, SyntheticTask, shorten
from titans.errors import TitansError
from titans.training.fit import Moment, fit, parameter_groups
from titans.training.objective import Objective

SCHEDULES = ("cosine", "constant")
CURVE_POINTS = 50
_PARTS = {"train": 0, "validation": 1, "test": 2}
LossProgress = Callable[[float, float], None]  # share of the training done, loss in nats per answer


@dataclasses.dataclass(frozen=True)
class Budget:
    """How a model is trained.

    Args:
        steps: optimizer steps.
        batch: sequences of each.
        learning_rate: its peak. Default 3e-3.
        schedule: after the warm-up, "cosine" (down to 0) or "constant". Default "cosine".
        warm_up: share of the steps in which the rate grows linearly. Default 0.1.
        weight_decay: AdamW's, of matrices only. Default 0.1.
        clip: largest norm of a gradient. Default 1.0.
        write_cost: as of `titans.training.objective.Objective`. Default 0.
        piece_length: as there. Default: none, the whole sequence.
        curriculum: take the training sizes one after the other, each for an equal share of the steps; otherwise each
            step draws one of them. Default false.

    Raises:
        TitansError: one of them is out of range.
    """

    steps: int
    batch: int
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    warm_up: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    write_cost: float = 0.0
    piece_length: int | None = None
    curriculum: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise TitansError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise TitansError(f"{name} is {getattr(self, name)}, expected a positive number")
        if not 0 <= self.weight_decay < math.inf:
            raise TitansError(f"weight_decay is {self.weight_decay}, expected 0 or more")
        _ = self.objective  # refuses what it cannot be
        if not 0 <= self.warm_up < 1:
            raise TitansError(f"warm_up is {self.warm_up}, expected a share of the steps: at least 0, less than 1")
        if self.schedule not in SCHEDULES:
            raise TitansError(f'schedule is "{self.schedule}", expected one of {", ".join(SCHEDULES)}')

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        warm = math.ceil(self.warm_up * self.steps)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        if self.schedule == "constant":
            return self.learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * (step - warm) / (self.steps - warm))) / 2

    @property
    def objective(self) -> Objective:
        """What is made small."""
        return Objective(self.write_cost, self.piece_length)


@dataclasses.dataclass(frozen=True)
class Training:
    """How a training went.

    Args:
        steps: optimizer steps.
        tokens: tokens read.
        seconds: time taken.
        curve: (steps done, mean loss in nats per answer since the point before), some 50 points.
    """

    steps: int
    tokens: int
    seconds: float
    curve: tuple[tuple[int, float], ...]


def generator_for(seed: int, part: str, size: Size | None = None) -> torch.Generator:
    """Make the generator, on the CPU, of a part of a task; parts, seeds and sizes have nothing in common."""
    size = size or Size(0)
    words = np.random.SeedSequence([seed, _PARTS[part], size.length, size.pairs or 0]).generate_state(2)
    return torch.Generator().manual_seed(int(words[0]) << 31 ^ int(words[1]))


def train_on(
    model: Any,
    task: SyntheticTask,
    sizes: Sequence[Size],
    budget: Budget,
    seed: int = 0,
    progress: LossProgress | None = None,
) -> Training:
    """Train a causal language model on a synthetic task.

    What is read depends on the task, the sizes, the budget and the seed alone: every model reads the same tokens
    in the same order.

    Args:
        model: a model of this package or any Hugging Face causal language model, on any device; trained in place and
            left in evaluation mode.
        task: the task.
        sizes: to train at.
        budget: for how long and how.
        seed: of the data. Default 0.
        progress: called after each step. Default: nothing.

    Returns:
        How it went.

    Raises:
        TitansError: the synthetic task cannot be set at one of the sizes, or the model's vocabulary is too small.
        Diverged: the loss or a gradient became NaN or infinite.
    """
    check(model, task, sizes)
    task, objective = task.part("train"), budget.objective
    generator = generator_for(seed, "train")
    curve: list[tuple[int, float]] = []
    recent: list[float] = []  # nats per answer, without the price of writing, of the steps since the last point
    tokens = 0

    def losses(model: Any, moment: Moment) -> Iterator[Tensor]:
        nonlocal tokens
        drawn = int(torch.randint(len(sizes), (), generator=generator))
        size = sizes[moment.step * len(sizes) // budget.steps if budget.curriculum else drawn]
        ids, labels = task.batch(budget.batch, size, generator)
        tokens += ids.numel()
        recent.append(0.0)
        for terms in objective.parts(model, ids, labels, (moment.step + 1) / budget.steps):
            yield terms.loss + terms.price
            recent[-1] += float(terms.loss.detach())

    def after_step(moment: Moment, loss: float) -> None:
        step = moment.step
        if step * CURVE_POINTS // budget.steps > (step - 1) * CURVE_POINTS // budget.steps:
            curve.append((step, math.fsum(recent) / len(recent)))
            recent.clear()
        if progress is not None:
            progress(step / budget.steps, curve[-1][1] if curve else recent[-1])

    optimizer = torch.optim.AdamW(parameter_groups(model, budget.weight_decay), betas=(0.9, 0.95))
    done = fit(
        model,
        losses,
        optimizer,
        steps=budget.steps,
        rate=lambda moment: budget.rate(moment.step),
        clip=budget.clip,
        seed=seed,
        after_step=after_step,
    )
    model.eval()
    return Training(done.steps, tokens, done.seconds, tuple(curve))


def check(model: Any, task: SyntheticTask, sizes: Sequence[Size]) -> None:
    """Refuse sizes at which the task cannot be set, and a vocabulary that is too small, before any work is done."""
    for size in dict.fromkeys(sizes):
        task.check(size)
    if model.config.vocab_size < task.vocab_size:
        raise TitansError(
            f"the model has {model.config.vocab_size:,} tokens and {task.name} {task.vocab_size:,}: give the model "
            "as large a vocabulary"
        )


def protocol(task: SyntheticTask, budget: Budget, sizes: Sequence[str], sequences: int) -> str:
    """Say in one line how a model is trained and tested, and what deviates from what is published."""
    order = "one size after the other" if budget.curriculum else "sizes mixed"
    said = [
        task.definition,
        f"trained on {budget.steps:,} steps of {budget.batch} sequences at {shorten(sizes)}, {order}, none read twice",
        f"AdamW, {budget.schedule} schedule from {budget.learning_rate:g}",
        f"tested on {sequences} sequences of each size, the likeliest token counts",
    ]
    return f"protocol: {', '.join(said)}; deviations: {'; '.join(task.deviations) or 'none'}"
