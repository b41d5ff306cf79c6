"""A thin `transformers.Trainer` that carries the memory from piece to piece and survives being killed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils import send_to_device
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from transformers import EvalPrediction, PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer_utils import rotate_checkpoints

from titans.data.packing import IGNORED, PieceDataset
from titans.errors import TitansError
from titans.models.memory_state import MemoryState
from titans.training.arguments import StreamTrainingArguments
from titans.training.checkpoints import (
    check_order,
    last_intact_checkpoint,
    load_carried_state,
    save_carried_state,
    save_order,
    seal,
    state_path,
    unseal,
)
from titans.training.objective import Objective, logits_at, resumed, split_pieces


class StreamTrainer(Trainer):
    """Truncated back-propagation through time over the streams of a `PieceDataset`.

    The state that a streamed step leaves is detached and handed to the next; rows where a document starts get
    a fresh one, through which the initial memory is trained. The carried state is saved with every
    checkpoint, so that a resumed run equals an uninterrupted one. Evaluation has a state of its own and
    starts fresh.

    A checkpoint is sealed when everything is in it, and only then older ones are deleted. Of what it holds,
    transformers reads the weights as safetensors, and the optimizer, the scheduler and the random numbers
    with `torch.load(weights_only=True)`: nothing is unpickled.

    Args:
        model: a causal language model of this package.
        args: training arguments; one process for each device.
        train_dataset: the pieces to train on.
        eval_dataset: the pieces to evaluate on. Default: none.
        **kwargs: passed to `transformers.Trainer`.

    Attributes:
        carried: the state that the last streamed step left; None before the first.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: StreamTrainingArguments,
        train_dataset: PieceDataset,
        eval_dataset: PieceDataset | None = None,
        **kwargs: Any,
    ) -> None:
        args._n_gpu = min(args.n_gpu, 1)  # as transformers sets it itself: a state cannot be scattered over devices
        args.remove_unused_columns = args.batch_eval_metrics = False
        checkpoints = _Checkpoints(self, args.save_total_limit)
        args.save_total_limit = None  # older ones are deleted by that
        self.objective: Objective = args.objective
        self.carried: MemoryState | None = None
        self._evaluated: MemoryState | None = None
        self._order = _EpochOrder(train_dataset)
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            compute_metrics=_mean_loss,
            **kwargs,
        )
        self.loss_is_scaled_for_ga = True
        self.add_callback(_SetEpoch(self._order))
        self.add_callback(checkpoints)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Load the batches, which the dataset has put together for this process already."""
        return self._loader(cast(PieceDataset, self.train_dataset), self._order)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Load the evaluation batches, in the order of epoch 0."""
        dataset = cast(PieceDataset, self.eval_dataset if eval_dataset is None else eval_dataset)
        return self._loader(dataset, _EpochOrder(dataset))

    def _loader(self, dataset: PieceDataset, order: Sampler[int]) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            sampler=order,
            batch_size=1,  # of batches: batch_size=None would leave Trainer no batch sampler to skip with
            collate_fn=_only,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type == "cuda",
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )

    def total_steps(self) -> int:
        """Count the optimizer steps of the whole training."""
        steps: int = self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]
        return steps

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Take the micro-batches of one optimizer step and count their targets: labels come shifted."""
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        count = torch.stack([(batch["labels"] != IGNORED).sum() for batch in samples]).sum().to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count).sum()
        return samples, count

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Train on one micro-batch, piece by piece; processes add up their gradients after the last."""
        pieces = split_pieces(inputs, self.objective.piece_length)
        if len(pieces) == 1:
            return super().training_step(model, inputs, num_items_in_batch)
        left, losses = self.carried, []
        for number, piece in enumerate(pieces, start=1):
            piece["streamed"], piece["reset"] = True, piece["reset"] & (number == 1)
            with nullcontext() if number == len(pieces) else self.accelerator.no_sync(model):
                losses.append(super().training_step(model, piece, num_items_in_batch))
        if not inputs["streamed"]:
            self.carried = left
        return torch.stack(losses).sum()

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Sum the loss over the targets, divided by their number in the whole optimizer step, and the price of writing.

        The memory goes on from the last streamed step.
        """
        assert num_items_in_batch is not None  # see get_batch_samples
        terms = self.objective.terms(
            model,
            resumed(inputs, self.carried, self._initial_state),
            inputs["labels"],
            targets=num_items_in_batch,
            tokens=num_items_in_batch,  # the dataset asks for the token after each
            done=(self.state.global_step + 1) / max(self.state.max_steps, 1),
        )
        if inputs["streamed"]:
            self.carried = terms.output.cache.detach()
        loss = terms.loss + terms.price
        if self.args.average_tokens_across_devices:
            loss = (
                loss * self.accelerator.num_processes
            )  # their gradients are averaged, and the targets are those of all
        return (loss, terms.output) if return_outputs else loss

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, Tensor, Tensor]:
        """Return the loss of each row in nats, and its targets; the memory is carried within each document."""
        batch = send_to_device(inputs, self.args.device)
        labels, asked = batch["labels"], batch["labels"] != IGNORED
        with torch.no_grad():
            start = resumed(batch, self._evaluated, self._initial_state)
            logits, output = logits_at(model, asked, **start)
            nats = F.cross_entropy(logits, labels[asked], reduction="none")
        if batch["streamed"]:
            self._evaluated = output.cache
        return None, torch.zeros(asked.shape, device=nats.device).masked_scatter(asked, nats).sum(1), asked.sum(1)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, with the memory as the checkpoint left it.

        Args:
            resume_from_checkpoint: a checkpoint; or True, for the last whole one in `output_dir`. Default: start anew.
            *args: passed to `transformers.Trainer.train`.
            **kwargs: the same by name.

        Raises:
            TitansError: there is no checkpoint, the steps would read other data than its training did, or its memory
                state is damaged.
        """
        self.carried, checkpoint = None, None
        if resume_from_checkpoint is True:
            checkpoint = last_intact_checkpoint(Path(str(self.args.output_dir)))
            if checkpoint is None:
                raise TitansError(f"{self.args.output_dir} holds no whole checkpoint to resume from")
        elif resume_from_checkpoint:
            checkpoint = Path(resume_from_checkpoint)
        if checkpoint is not None:
            check_order(checkpoint, self.data_order())
            path = state_path(checkpoint, self.args.process_index)
            if path.exists():
                model, rows = self.accelerator.unwrap_model(self.model), self.args.per_device_train_batch_size
                self.carried = load_carried_state(path, model, rows)
        return super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model; a checkpoint that is written again is not whole until the end."""
        unseal(Path(output_dir or str(self.args.output_dir)))
        super().save_model(output_dir, _internal_call)

    def data_order(self) -> dict[str, int]:
        """Return what decides which pieces each step reads."""
        steps = {"gradient_accumulation_steps": self.args.gradient_accumulation_steps}
        return cast(PieceDataset, self.train_dataset).order | steps

    def _initial_state(self, rows: int) -> MemoryState:
        state: MemoryState = self.accelerator.unwrap_model(self.model).initial_state(rows)
        return state


class _Checkpoints(TrainerCallback):
    """Completes each checkpoint, seals it, and only then deletes older ones."""

    def __init__(self, trainer: StreamTrainer, limit: int | None) -> None:
        self.trainer, self.limit = trainer, limit

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoint, carried = Path(args.output_dir, f"checkpoint-{state.global_step}"), self.trainer.carried
        path = state_path(checkpoint, args.process_index)
        if carried is None:
            path.unlink(missing_ok=True)
        else:
            save_carried_state(path, carried)
        if args.should_save:
            save_order(checkpoint, self.trainer.data_order())
        self.trainer.accelerator.wait_for_everyone()
        if args.should_save:
            seal(checkpoint)
            rotate_checkpoints(args.output_dir, self.limit, state.best_model_checkpoint)


def _mean_loss(rows: EvalPrediction) -> dict[str, float]:
    """Divide the sum of all rows' losses by that of their targets."""
    loss = float(np.sum(rows.predictions, dtype=np.float64) / np.sum(rows.label_ids, dtype=np.float64))
    return {"loss": loss, "perplexity": math.exp(min(loss, 700))}


def _only(items: list[Any]) -> Any:
    (item,) = items
    return item


class _EpochOrder(Sampler[int]):
    """The item numbers of one epoch of a `PieceDataset`."""

    def __init__(self, dataset: PieceDataset) -> None:
        self.steps = len(dataset)
        self.epoch = 0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch * self.steps, (self.epoch + 1) * self.steps))


class _SetEpoch(TrainerCallback):
    """Moves the order on at each epoch, also after a resume, when Trainer does not tell the sampler."""

    def __init__(self, order: _EpochOrder) -> None:
        self.order = order

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        per_epoch = -(-self.order.steps // args.gradient_accumulation_steps)
        self.order.epoch = state.global_step // per_epoch
