"""Training a causal language model on a synthetic task, within a budget."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from titans.data.packing import IGNORED
from titans.data.synthetic.task import Size, SyntheticTask
from titans.error_text import first_line
from titans.errors import TitansError
from titans.models.write_gates import WriteGates

SCHEDULES = ("cosine", "constant")
CURVE_POINTS = 50
_PARTS = {"train": 0, "validation": 1, "test": 2}
Progress = Callable[[float, float], None]  # share of the training done, loss in nats per answer


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
        write_cost: price of writing, in nats for gates that stand equally open (`titans.models.write_gates`); asked
            from the middle of the training on, in full after a tenth more. Default 0.
        piece_length: tokens after which a Titans model carries its state on and gradients end. Default: none, the
            whole sequence.
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
        for name in ("weight_decay", "write_cost"):
            if not 0 <= getattr(self, name) < math.inf:
                raise TitansError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if self.piece_length is not None and self.piece_length < 1:
            raise TitansError(f"piece_length is {self.piece_length}, expected at least 1")
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

    def price(self, step: int) -> float:
        """Return the price of writing at a step, counted from 0."""
        return self.write_cost * min(max((step + 1) / self.steps - 0.5, 0.0) / 0.1, 1.0)


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


class Diverged(TitansError):
    """A training whose loss or gradient is no longer a finite number."""


def generator_for(seed: int, part: str, size: Size | None = None) -> torch.Generator:
    """Make the generator of one part of a synthetic task; parts, seeds and sizes have nothing in common.

    Args:
        seed: any whole number of at least 0.
        part: "train", "validation" or "test".
        size: the size asked for, in tests. Default: none in particular.

    Returns:
        A generator on the CPU, so that every device reads the same.
    """
    size = size or Size(0)
    words = np.random.SeedSequence([seed, _PARTS[part], size.length, size.pairs or 0]).generate_state(2)
    return torch.Generator().manual_seed(int(words[0]) << 31 ^ int(words[1]))


def train_on(
    model: Any,
    task: SyntheticTask,
    sizes: Sequence[Size],
    budget: Budget,
    seed: int = 0,
    progress: Progress | None = None,
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
    task = task.part("train")
    generator = generator_for(seed, "train")
    optimizer = torch.optim.AdamW(
        parameter_groups(model, budget.weight_decay), lr=budget.learning_rate, betas=(0.9, 0.95)
    )
    curve: list[tuple[int, float]] = []
    recent: list[float] = []
    tokens, start = 0, time.monotonic()
    model.train()
    with WriteGates(model) if budget.write_cost else contextlib.nullcontext() as gates:
        for step in range(budget.steps):
            drawn = int(torch.randint(len(sizes), (), generator=generator))
            size = sizes[step * len(sizes) // budget.steps if budget.curriculum else drawn]
            ids, labels = task.batch(budget.batch, size, generator)
            for group in optimizer.param_groups:
                group["lr"] = budget.rate(step)
            recent.append(_step(model, ids, labels, optimizer, budget, step, gates))
            tokens += ids.numel()
            if (step + 1) * CURVE_POINTS // budget.steps > step * CURVE_POINTS // budget.steps:
                curve.append((step + 1, math.fsum(recent) / len(recent)))
                recent.clear()
            if progress is not None:
                progress((step + 1) / budget.steps, curve[-1][1] if curve else recent[-1])
    model.eval()
    return Training(budget.steps, tokens, time.monotonic() - start, tuple(curve))


def check(model: Any, task: SyntheticTask, sizes: Sequence[Size]) -> None:
    """Refuse what cannot be trained or tested, before any work is done.

    Args:
        model: the model.
        task: the task.
        sizes: all sizes at which it will be set.

    Raises:
        TitansError: the synthetic task cannot be set at one of the sizes, or the model's vocabulary is too small.
    """
    for size in dict.fromkeys(sizes):
        task.check(size)
    if model.config.vocab_size < task.vocab_size:
        raise TitansError(
            f"the model has {model.config.vocab_size:,} tokens and {task.name} {task.vocab_size:,}: give the model "
            "as large a vocabulary"
        )


def answers_at(model: Any, ids: Tensor, asked: Tensor, **state: Any) -> tuple[Tensor, Any]:
    """Return a model's logits where something is asked, and nowhere else where that saves work.

    Args:
        model: a causal language model.
        ids: tokens `[B, N]`.
        asked: where to answer `[B, N]`, bool.
        **state: passed to the model.

    Returns:
        Logits `[asked, vocab_size]`, float32, and what the model put out.
    """
    from titans.models.modeling import TitansForCausalLM

    if isinstance(model, TitansForCausalLM):  # its logits are the head's; others may scale or cap them
        output = model.model(ids, **state)
        return model.lm_head(output.last_hidden_state[asked]).float(), output
    output = model(input_ids=ids, **state)
    return output.logits[asked].float(), output


def _step(
    model: Any, ids: Tensor, labels: Tensor, optimizer: Any, budget: Budget, step: int, gates: WriteGates | None
) -> float:
    """Make one optimizer step; returns the loss in nats per answer, without the price of writing."""
    optimizer.zero_grad()
    found, price = 0.0, budget.price(step)
    try:
        for loss, share in _losses(model, ids.to(model.device), labels.to(model.device), budget.piece_length):
            cost = 0.0 if gates is None else share * price * gates.take_spread().to(loss.device)
            (loss + cost).backward()
            found += float(loss.detach())
    except ValueError as error:  # the layers refuse what is not finite
        raise Diverged(f"the training diverged at step {step + 1:,}: {first_line(error)}") from error
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), budget.clip)
    if not math.isfinite(found) or not bool(norm.isfinite()):
        raise Diverged(
            f"the training diverged at step {step + 1:,}: the loss is {found:.3g}, the gradient {float(norm):.3g}"
        )
    optimizer.step()
    return found


def _losses(model: Any, ids: Tensor, labels: Tensor, piece_length: int | None) -> Iterator[tuple[Tensor, float]]:
    """Each piece's part of the mean loss per answer, and its share of the tokens."""
    from titans.models.modeling import TitansForCausalLM

    asked = labels != IGNORED
    length = ids.shape[1]
    in_pieces = piece_length is not None and piece_length < length and isinstance(model, TitansForCausalLM)
    cut = piece_length if in_pieces and piece_length is not None else length
    state = None
    for piece, answers, here in zip(*(x.split(cut, 1) for x in (ids, labels, asked)), strict=True):
        logits, output = answers_at(model, piece, here, **({"cache": state, "use_cache": True} if in_pieces else {}))
        state = output.cache.detach() if in_pieces else None
        yield F.cross_entropy(logits, answers[here], reduction="sum") / asked.sum(), piece.shape[1] / length


def parameter_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Sort a model's parameters for AdamW: what is no matrix (norms, biases) is spared from weight decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
