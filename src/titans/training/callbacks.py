"""What happens around a training step: the progress bar, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
import types
from typing import Any, Self

import torch
import torch.distributed
from transformers import ProgressCallback, TrainerCallback


class StopOnInterrupt(TrainerCallback):
    """Turns Ctrl-C into a checkpoint: the step is finished, everything is saved, training stops.

    A context manager: while it is entered, the first Ctrl-C is noted and the second interrupts at once. Where Ctrl-C is
    ignored, as in the background of a script, it stays so.

    Attributes:
        requested: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> Self:
        self._previous = signal.getsignal(signal.SIGINT)
        if self._previous is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("\nstopping: this step is finished and saved first (Ctrl-C again stops at once)", file=sys.stderr)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ask for a checkpoint and for the end of training."""
        if args.world_size > 1:  # all processes stop at the same step, or they would wait for each other forever
            requested = torch.tensor(int(self.requested), device=args.device)
            torch.distributed.all_reduce(requested, torch.distributed.ReduceOp.MAX)
            self.requested = bool(requested)
        if self.requested:
            control.should_save = control.should_training_stop = True


class ProgressBar(ProgressCallback):
    """The bar of transformers, with the latest loss in it instead of a line for every log."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the training loss in the bar, and an evaluation as a line."""
        bar: Any = self.training_bar
        if bar is None:
            return
        if "loss" in logs:
            bar.set_postfix_str(f"loss {logs['loss']:.4g}, learning rate {logs['learning_rate']:.3g}")
        if "eval_loss" in logs:
            bar.write(
                f"step {state.global_step}: evaluation loss {logs['eval_loss']:.4f} nats/token, "
                f"perplexity {logs['eval_perplexity']:.4g}"
            )
