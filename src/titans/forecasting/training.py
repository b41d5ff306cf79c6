"""Training of forecasting models as the field does it: Adam, a falling rate, and the best weights on validation."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from titans.errors import TitansError
from titans.forecasting.scores import Errors

Loss = Callable[[Tensor, Tensor], Tensor]
"""From forecasts and futures, `[B, H, C]`, to a number to make small."""
Step = Callable[..., tuple[Tensor, Tensor]]
"""`step(model, past, future, ...)`: the forecasts `[B, H, C]` and the loss; dots: what else the batches hold."""
Decay = Literal["halve", "cosine"]
Choice = Literal["mse", "loss"]


class Batches(Protocol):
    """What can be trained on: `titans.forecasting.windows.Windows`, or anything that cuts out batches like it."""

    def __len__(self) -> int:
        """How many windows there are."""
        ...

    def batch(self, index: Tensor, /) -> tuple[Tensor, ...]:
        """Return past `[B, L, C]`, future `[B, H, C]`, and whatever else a step is to be given."""
        ...


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One pass over the training windows.

    Args:
        training_loss: mean loss of its batches while the weights changed.
        validation_mse: mean squared error afterwards, over all validation windows.
        validation_loss: mean loss afterwards, over the same.
        learning_rate: at its start.
        seconds: since training began.
    """

    training_loss: float
    validation_mse: float
    validation_loss: float
    learning_rate: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class History:
    """What a training did.

    Args:
        start_mse: mean squared error before the first step, over all validation windows.
        start_loss: mean loss before the first step, over the same.
        epochs: its epochs, the last perhaps cut short.
        stopped: by what: "epochs", all were done; "patience"; "seconds".
        choice: what decided which weights were kept, "mse" or "loss".
    """

    start_mse: float
    start_loss: float
    epochs: tuple[Epoch, ...]
    stopped: str
    choice: str

    @property
    def best(self) -> int:
        """After how many epochs the weights were those that the model was left with."""
        errors = [self.start_mse, *(epoch.validation_mse for epoch in self.epochs)]
        losses = [self.start_loss, *(epoch.validation_loss for epoch in self.epochs)]
        chosen = errors if self.choice == "mse" else losses
        return chosen.index(min(chosen))

    @property
    def validation_mse(self) -> float:
        """The mean squared error of the model as it was left."""
        return self.epochs[self.best - 1].validation_mse if self.best else self.start_mse


def fit(
    model: nn.Module,
    train: Batches,
    validation: Batches,
    *,
    loss: Loss = F.mse_loss,
    step: Step | None = None,
    epochs: int = 10,
    batch_size: int = 32,
    learning_rate: float = 1e-4,
    decay: Decay = "halve",
    patience: int = 3,
    choice: Choice = "mse",
    weight_decay: float = 0.0,
    clip: float | None = None,
    epoch_steps: int | None = None,
    seed: int = 0,
    seconds: float | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> History:
    """Train a model, and leave it with the weights that forecast the validation windows best.

    These may be the weights it came with. The same seed gives the same weights on the same machine, unless `seconds`
    ends the training. Weights that need no gradient stay as they are.

    Args:
        model: from pasts `[B, L, C]` to forecasts `[B, H, C]`; it is moved to the GPU if there is one, and stays.
        train: windows to train on, all of them in each epoch, in a new order.
        validation: windows to choose by.
        loss: from forecasts and futures to a scalar. Default: mean squared error.
        step: what to do with a batch in place of calling the model and `loss`, for a model with a loss of its own:
            `step(model, past, future)` returns its forecasts and its loss.
        epochs: passes over the training windows. Default 10.
        batch_size: windows of one step. Default 32.
        learning_rate: of Adam, at the start. Default 1e-4.
        decay: "halve": half the rate in each epoch after the first; "cosine": down to 0, step by step.
        patience: give up after so many epochs that were no better on validation. Default 3.
        choice: by what is better: "mse", the squared error of the forecasts, or "loss". Default "mse".
        weight_decay: decoupled, as in AdamW. Default 0.
        clip: largest norm of the gradient. Default: any.
        epoch_steps: most steps of an epoch, which then ends before all windows have been seen. Default: no limit.
        seed: of the order and of dropout; the weights a model begins with are its maker's. Default 0.
        seconds: end after so long: no step begins that would leave no time to validate as long as the last time.
            The rates fall as if there were time for all epochs. Default: no limit.
        progress: called after each step with the share done, 0 to 1, and a line. Default: nothing.

    Returns:
        The losses.

    Raises:
        TitansError: a setting is out of range, or training diverges.
    """
    time_limit = math.inf if seconds is None else seconds
    _check(epochs=epochs, batch_size=batch_size, patience=patience, learning_rate=learning_rate, seconds=time_limit)
    _check(epoch_steps=1 if epoch_steps is None else epoch_steps)
    steps = math.ceil(len(train) / batch_size)
    steps = steps if epoch_steps is None else min(steps, epoch_steps)
    schedule, clock = _Schedule(learning_rate, decay, epochs, steps), _Clock(time_limit)
    job = _Job(model, step or _plain_step(loss), schedule, clock, weight_decay, clip, progress)
    best, was_training = copy.deepcopy(model.state_dict()), model.training
    with _seeded(seed, job.accelerator.device):
        history = History(*job.validate(validation, batch_size), (), "epochs", choice)
        for number in range(epochs):
            training_loss, mse, loss_ = _finite_or_nan(job, train, validation, batch_size, _line(history))
            if not math.isfinite(training_loss + mse):
                raise TitansError(
                    f"training diverged in epoch {number + 1}: the loss is {training_loss:.4g} and the validation "
                    f"error {mse:.4g}; lower the learning rate, which is {learning_rate:g}"
                )
            epoch = Epoch(training_loss, mse, loss_, schedule.rate(number * schedule.steps), clock.elapsed())
            history = dataclasses.replace(history, epochs=(*history.epochs, epoch))
            if history.best == number + 1:
                best = copy.deepcopy(model.state_dict())
            reason = "patience" if number + 1 - history.best >= patience else "seconds" if clock.is_over() else None
            if reason is not None and number < epochs - 1:
                history = dataclasses.replace(history, stopped=reason)
                break
    if progress is not None:
        progress(1.0, _line(history))
    model.load_state_dict(best)
    model.train(was_training)
    return history


def _finite_or_nan(job: _Job, train: Batches, validation: Batches, size: int, line: str) -> tuple[float, float, float]:
    """One epoch: loss, validation error and loss; NaN where a model refuses what its own weights have become."""
    try:
        return job.train(train, size, line), *job.validate(validation, size)
    except ValueError as error:
        if "NaN or infinity" not in str(error):
            raise
        return math.nan, math.nan, math.nan


class _Schedule:
    """The learning rate of each step."""

    def __init__(self, learning_rate: float, decay: str, epochs: int, steps: int) -> None:
        if decay not in get_args(Decay):
            raise TitansError(f"decay is {decay!r}, expected one of {', '.join(get_args(Decay))}")
        self.learning_rate, self.decay, self.epochs, self.steps = learning_rate, decay, epochs, steps

    def rate(self, done: int) -> float:
        """The learning rate after so many steps."""
        if self.decay == "halve":
            return self.learning_rate * 0.5 ** (done // self.steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * self.share(done)))

    def share(self, done: int) -> float:
        """How much of the training so many steps are."""
        return done / (self.epochs * self.steps)


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


class _Job:
    """A model and its optimizer on their device, and how far they are."""

    def __init__(
        self,
        model: nn.Module,
        step: Step,
        schedule: _Schedule,
        clock: _Clock,
        weight_decay: float,
        clip: float | None,
        progress: Callable[[float, str], None] | None,
    ) -> None:
        self.accelerator = Accelerator()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, schedule.learning_rate, weight_decay=weight_decay)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.step, self.schedule, self.clock, self.clip, self.progress = step, schedule, clock, clip, progress
        self.done = 0

    def train(self, windows: Batches, batch_size: int, line: str) -> float:
        """Take the steps of an epoch, or as many as there is time for, at least one; return their mean loss."""
        self.model.train()
        losses = []
        for index in torch.randperm(len(windows)).split(batch_size)[: self.schedule.steps]:
            for group in self.optimizer.param_groups:
                group["lr"] = self.schedule.rate(self.done)
            _, loss = self.step(self.model, *self._batch(windows, index))
            self.optimizer.zero_grad()
            self.accelerator.backward(loss)
            if self.clip is not None:
                self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            losses.append(loss.detach())  # read once, at the end: reading waits for a GPU
            self.done += 1
            if self.progress is not None:
                self.progress(max(self.schedule.share(self.done), self.clock.share()), line)
            if self.clock.is_over():
                break
        return float(torch.stack(losses).double().mean())

    def validate(self, windows: Batches, batch_size: int) -> tuple[float, float]:
        """Return the mean squared error and the mean loss over all windows."""
        start, errors, total, count = self.clock.elapsed(), Errors(), 0.0, 0
        self.model.eval()
        with torch.no_grad():
            for index in torch.arange(len(windows)).split(batch_size):
                batch = self._batch(windows, index)
                prediction, loss = self.step(self.model, *batch)
                errors.add(prediction, batch[1])
                known = int((~batch[1].isnan()).sum())
                total, count = total + float(loss) * known, count + known
        self.clock.validation = self.clock.elapsed() - start
        return errors.scores().mse, total / count

    def _batch(self, windows: Batches, index: Tensor) -> list[Tensor]:
        return [tensor.to(self.accelerator.device) for tensor in windows.batch(index)]


def _plain_step(loss: Loss) -> Step:
    def step(model: nn.Module, past: Tensor, future: Tensor) -> tuple[Tensor, Tensor]:
        prediction = model(past)
        return prediction, loss(prediction, future)

    return step


def _line(history: History) -> str:
    epoch = f"epoch {len(history.epochs) + 1}"
    return f"{epoch}, validation MSE {history.validation_mse:.4f}"


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed what draws at random inside, and leave the generators outside as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type="cuda"):
        torch.manual_seed(seed)
        yield


def _check(**settings: float) -> None:
    for name, value in settings.items():
        if not value > 0 or (name == "learning_rate" and math.isinf(value)):
            raise TitansError(f"{name} is {value}, expected more than 0")
