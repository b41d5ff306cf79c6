"""Training of forecasting models as the field does it: Adam, a falling rate, and the best weights on validation."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from titans.errors import TitansError
from titans.forecasting.scores import mean_errors
from titans.training.fit import Moment, Validation, fit

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


def mse_step(model: nn.Module, past: Tensor, future: Tensor) -> tuple[Tensor, Tensor]:
    """Forecast, with the mean squared error: the step of a model from pasts to forecasts."""
    prediction = model(past)
    return prediction, F.mse_loss(prediction, future)


def fit_windows(
    model: nn.Module,
    train: Batches,
    validation: Batches,
    *,
    step: Step = mse_step,
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
        model: what `step` takes; it is moved to the GPU if there is one, and stays.
        train: windows to train on, all of them in each epoch, in a new order.
        validation: windows to choose by.
        step: what to do with a batch: `step(model, past, future)` returns forecasts and a loss. Default: call the
            model; its mean squared error.
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
    time_limit, most_steps = (math.inf if limit is None else limit for limit in (seconds, epoch_steps))
    _check(epochs=epochs, batch_size=batch_size, patience=patience, learning_rate=learning_rate)
    _check(seconds=time_limit, epoch_steps=most_steps)
    if decay not in get_args(Decay):
        raise TitansError(f"decay is {decay!r}, expected one of {', '.join(get_args(Decay))}")
    per_epoch = int(min(math.ceil(len(train) / batch_size), most_steps))
    steps, start = epochs * per_epoch, time.monotonic()
    device = Accelerator().device
    order: list[Tensor] = []
    recent: list[float] = []  # losses of the epoch's steps
    history = History(math.nan, math.nan, (), "", choice)

    def rate(moment: Moment) -> float:
        if decay == "halve":
            return learning_rate * 0.5 ** (moment.step // per_epoch)
        return learning_rate * 0.5 * (1 + math.cos(math.pi * moment.step / steps))

    def losses(model: nn.Module, moment: Moment) -> list[Tensor]:
        if moment.step % per_epoch == 0:
            order[:] = torch.randperm(len(train)).split(batch_size)
        return [step(model, *_batch(train, order[moment.step % per_epoch], device))[1]]

    def validate() -> float:
        nonlocal history
        mse, mean = _validate(model, validation, batch_size, step, device)
        if not recent:
            history = dataclasses.replace(history, start_mse=mse, start_loss=mean)
        else:
            at = rate(Moment(len(history.epochs) * per_epoch, 0.0))
            training_loss = math.fsum(recent) / len(recent)
            if not math.isfinite(mse):
                raise TitansError(
                    f"training diverged in epoch {len(history.epochs) + 1}: the validation error is {mse}"
                )
            epoch = Epoch(training_loss, mse, mean, at, time.monotonic() - start)
            history = dataclasses.replace(history, epochs=(*history.epochs, epoch))
            recent.clear()
        return mse if choice == "mse" else mean

    def after_step(moment: Moment, loss: float) -> None:
        recent.append(loss)
        if progress is not None:
            progress(moment.done, _line(history))

    trained = [parameter for parameter in model.to(device).parameters() if parameter.requires_grad]
    found = fit(
        model,
        losses,
        torch.optim.AdamW(trained, learning_rate, weight_decay=weight_decay),
        steps=steps,
        rate=rate,
        clip=clip,
        seconds=time_limit,
        validation=Validation(validate, per_epoch, patience),
        seed=seed,
        after_step=after_step,
    )
    if progress is not None:
        progress(1.0, _line(history))
    return dataclasses.replace(history, stopped="epochs" if found.stopped == "steps" else found.stopped)


def _validate(
    model: nn.Module, windows: Batches, batch_size: int, step: Step, device: torch.device
) -> tuple[float, float]:
    """Return the mean squared error and the mean loss over all windows."""
    losses: list[float] = []
    counts: list[int] = []

    def forecasts() -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.arange(len(windows)).split(batch_size):
            batch = _batch(windows, index, device)
            prediction, loss = step(model, *batch)
            counts.append(int((~batch[1].isnan()).sum()))
            losses.append(float(loss) * counts[-1])
            yield prediction, batch[1]

    return mean_errors(forecasts()).mse, sum(losses) / sum(counts)


def _batch(windows: Batches, index: Tensor, device: torch.device) -> list[Tensor]:
    return [tensor.to(device) for tensor in windows.batch(index)]


def _line(history: History) -> str:
    epoch = f"epoch {len(history.epochs) + 1}"
    return f"{epoch}, validation MSE {history.validation_mse:.4f}"


def _check(**settings: float) -> None:
    for name, value in settings.items():
        if not value > 0 or (name == "learning_rate" and math.isinf(value)):
            raise TitansError(f"{name} is {value}, expected more than 0")
