"""A thin `transformers.Trainer` that carries the memory from piece to piece and survives being killed."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import EvalLoopOutput, rotate_checkpoints

from titans.data.packing import IGNORED, PieceDataset
from titans.errors import TitansError
from titans.models.memory_state import MemoryState
from titans.training.checkpoints import (
    check_order,
    last_intact_checkpoint,
    load_state,
    save_order,
    save_state,
    seal,
    unseal,
)


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
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        train_dataset: PieceDataset,
        eval_dataset: PieceDataset | None = None,
        **kwargs: Any,
    ) -> None:
        args._n_gpu = min(args.n_gpu, 1)  # a state cannot be scattered over devices
        args.remove_unused_columns = False
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            compute_loss_func=functools.partial(_mean_loss, label_smoothing=args.label_smoothing_factor),
            **kwargs,
        )
        self.carried: MemoryState | None = None
        self._order = _EpochOrder(train_dataset)
        self.add_callback(_SetEpoch(self._order))

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
        if self.args.max_steps > 0:
            return self.args.max_steps
        per_epoch = math.ceil(self._order.steps / self.args.gradient_accumulation_steps)
        return math.ceil(self.args.num_train_epochs * per_epoch)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Take the micro-batches of one optimizer step and count their targets: labels come shifted."""
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        count = torch.stack([(batch["labels"] != IGNORED).sum() for batch in samples]).sum().to(device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count).sum()
        return samples, count

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Sum the loss over the targets, divided by their number in the whole optimizer step.

        The memory goes on from the last streamed step.
        """
        inputs = self._continue(inputs, self.carried)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if inputs["use_cache"]:
            self.carried = outputs.cache.detach()
        return (loss, outputs) if return_outputs else loss

    def _continue(self, batch: dict[str, Any], carried: MemoryState | None) -> dict[str, Any]:
        """Replace the batch's marks by the state that the model is to start from."""
        inputs = {key: value for key, value in batch.items() if key not in ("reset", "streamed")}
        inputs["use_cache"] = batch["streamed"]
        reset: Tensor = batch["reset"]
        if batch["streamed"] and carried is not None and not reset.all():
            fresh = self.accelerator.unwrap_model(self.model).initial_state(len(reset)) if reset.any() else carried
            inputs["cache"] = fresh.where(reset, carried)
        return inputs

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Measure the mean loss per token, the memory fresh at the start and carried within each document."""
        model: Any = self.model
        model.eval()
        self.callback_handler.eval_dataloader = dataloader
        carried: MemoryState | None = None
        sums = torch.zeros(3, dtype=torch.float64, device=self.args.device)  # nats, tokens, pieces
        for batch in dataloader:
            inputs = self._continue(self._prepare_inputs(batch), carried)
            labels = inputs.pop("labels")
            with torch.no_grad():
                outputs = model(**inputs)
                if inputs["use_cache"]:
                    carried = outputs.cache
                predicted = labels != IGNORED
                nats = _sum_loss(outputs.logits, labels).double()
                sums += torch.stack([nats, predicted.sum().double(), predicted.any(1).sum().double()])
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        total, tokens, pieces = self.accelerator.reduce(sums, "sum").tolist()
        loss = total / tokens
        metrics = {
            f"{metric_key_prefix}_loss": loss,
            f"{metric_key_prefix}_perplexity": math.exp(min(loss, 700)),
        }
        return EvalLoopOutput(predictions=np.empty(0), label_ids=None, metrics=metrics, num_samples=int(pieces))

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
            check_order(checkpoint, self._data_order())
            path = self._state_file(checkpoint)
            if path.exists():
                rows = self.args.per_device_train_batch_size
                like = self.accelerator.unwrap_model(self.model).initial_state(rows)
                self.carried = cast(MemoryState, load_state(path, like, self.args.device))
        return super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)

    def _data_order(self) -> dict[str, int]:
        steps = {"gradient_accumulation_steps": self.args.gradient_accumulation_steps}
        return cast(PieceDataset, self.train_dataset).order | steps

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Be silent about tied weights, which a checkpoint rightly lacks."""
        model: Any = self.model
        missing = [key for key in load_result.missing_keys if key not in model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        output_dir = str(self.args.output_dir)
        checkpoint = Path(output_dir, f"checkpoint-{self.state.global_step}")
        checkpoint.mkdir(parents=True, exist_ok=True)
        unseal(checkpoint)
        if self.carried is None:
            self._state_file(checkpoint).unlink(missing_ok=True)
        else:
            save_state(self._state_file(checkpoint), self.carried)
        if self.args.should_save:
            save_order(checkpoint, self._data_order())
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal(checkpoint)
            rotate_checkpoints(output_dir, limit, self.state.best_model_checkpoint)

    def _state_file(self, checkpoint: Path) -> Path:
        return checkpoint / f"memory_state_{self.args.process_index}.safetensors"


def _mean_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int, label_smoothing: float) -> Tensor:
    return _sum_loss(outputs.logits, labels, label_smoothing) / num_items_in_batch


def _sum_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


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
