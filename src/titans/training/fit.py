"""One training loop for everything small: synthetic tasks, the demonstration, forecasting."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from titans.error_text import first_line
from titans.errors import TitansError


class Diverged(TitansError):
    """A training whose loss or gradient is no longer a finite number."""


class Moment(NamedTuple):
    """How far a training is.

    Args:
        step: steps taken.
        done: share of the training done, 0 to 1: of its steps or of its time, whichever is larger.
    """

    step: int
    done: float


@dataclasses.dataclass(frozen=True)
class Validation:
    """How the best weights are chosen.

    Args:
        run: validates the model and returns a number to make small.
        every: steps between two validations; one more comes before the first step, and one at the end.
        patience: end after so many validations in a row that were no better than the best. Default: never.
    """

    run: Callable[[], float]
    every: int
    patience: float = math.inf


@dataclasses.dataclass(frozen=True)
class Fit:
    """What a training did.

    Args:
        steps: optimizer steps taken.
        seconds: time taken.
        stopped: by what: "steps", all were taken; "patience"; "seconds".
    """

    steps: int
    seconds: float
    stopped: str


def fit(
    model: nn.Module,
    losses: Callable[[Any, Moment], Iterable[Tensor]],
    optimizer: torch.optim.Optimizer,
    *,
    steps: int,
    rate: Callable[[Moment], float],
    clip: float | None = 1.0,
    seconds: float = math.inf,
    validation: Validation | None = None,
    seed: int = 0,
    after_step: Callable[[Moment, float], None] | None = None,
) -> Fit:
    """Train a model where it is, in place.

    The same seed gives the same weights on the same machine, unless `seconds` ends the training. `accelerate` decides
    on precision and, where several processes were started, on how they share the gradients.

    Args:
        model: to train; left in the mode it came in, with validation as the best one found.
        losses: called with the model and the moment before each step; returns the loss to go down, as scalars that are
            summed and back-propagated one by one.
        optimizer: of its parameters.
        steps: to take.
        rate: the learning rate of the step that begins at a moment.
        clip: largest norm of the gradient. Default 1; None for any.
        seconds: end after so long, with at least one step taken; no step begins that would leave no time to validate
            as long as the last time. Default: no limit.
        validation: how to choose the best weights. Default: the last ones are kept.
        seed: of what draws at random in the steps, such as dropout; generators outside are left as they are. Default 0.
        after_step: called after each step with the moment and the step's loss. Default: nothing.

    Returns:
        How long it took, and what ended it.

    Raises:
        Diverged: the loss or a gradient became NaN or infinite.
    """
    accelerator, was_training = Accelerator(device_placement=False), model.training
    prepared, optimizer = accelerator.prepare(model, optimizer)
    clock, best = _Clock(seconds), None if validation is None else _Best(model, validation)
    with _seeded(seed):
        clock.validate(best)
        for step in itertools.count(1):
            moment = Moment(step - 1, max((step - 1) / steps, clock.share()))
            for group in optimizer.param_groups:
                group["lr"] = rate(moment)
            prepared.train()
            loss = _step(accelerator, prepared, optimizer, losses(prepared, moment), clip, step)
            stopped = "steps" if step == steps else "seconds" if clock.is_over() else None
            if after_step is not None:
                after_step(Moment(step, 1.0 if stopped else max(step / steps, clock.share())), loss)
            if best is not None and (stopped or step % best.validation.every == 0):
                with _divergence(step):
                    clock.validate(best)
                if stopped is None:
                    stopped = "patience" if best.is_given_up() else "seconds" if clock.is_over() else None
            if stopped is not None:
                break
    if best is not None:
        model.load_state_dict(best.weights)
    model.train(was_training)
    return Fit(step, clock.elapsed(), str(stopped))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Sort a model's parameters for AdamW: what is no matrix (norms, biases) is spared from weight decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def _step(
    accelerator: Accelerator, model: Any, optimizer: Any, losses: Iterable[Tensor], clip: float | None, step: int
) -> float:
    """Make one optimizer step; returns its loss."""
    optimizer.zero_grad()
    found: list[Tensor] = []
    with _divergence(step):
        for loss in losses:
            accelerator.backward(loss)
            found.append(loss.detach())
    norm = accelerator.clip_grad_norm_(model.parameters(), math.inf if clip is None else clip)
    total = float(torch.stack(found).sum())
    if not math.isfinite(total) or not math.isfinite(norm):
        raise Diverged(
            f"training diverged at step {step:,}: the loss is {total:.3g}, the gradient {float(norm):.3g}; lower the "
            "learning rate"
        )
    optimizer.step()
    return total


@contextmanager
def _divergence(step: int) -> Iterator[None]:
    """Name what it is when layers refuse what the weights have become."""
    try:
        yield
    except ValueError as error:
        if "NaN or infinity" not in str(error):
            raise
        raise Diverged(f"training diverged at step {step:,}: {first_line(error)}; lower the learning rate") from error


class _Clock:
    """Knows when training must stop for its validation to end in time, as far as the last one tells."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds, self.validation = time.monotonic(), seconds, 0.0

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def is_over(self) -> bool:
        return self.elapsed() + self.validation >= self.seconds

    def share(self) -> float:
        return min(self.elapsed() / self.seconds, 1.0)

    def validate(self, best: _Best | None) -> None:
        start = self.elapsed()
        if best is not None:
            best.look()
        self.validation = self.elapsed() - start


class _Best:
    """The best weights so far."""

    def __init__(self, model: nn.Module, validation: Validation) -> None:
        self.model, self.validation = model, validation
        self.weights: dict[str, Any] = {}
        self.least, self.worse = math.inf, 0

    def look(self) -> None:
        """Validate, and keep the weights if they are better than all before."""
        self.model.eval()
        with torch.no_grad():
            value = self.validation.run()
        self.worse += 1
        if not self.weights or value < self.least:
            self.weights, self.worse = copy.deepcopy(self.model.state_dict()), 0
            self.least = math.inf if math.isnan(value) else value

    def is_given_up(self) -> bool:
        return self.worse >= self.validation.patience


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed what draws at random inside, and leave the generators outside as they were."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    devices = [] if device is None else [torch.accelerator.current_device_index()]
    with torch.random.fork_rng(devices, device_type="cuda" if device is None else device.type):
        torch.manual_seed(seed)
        yield
