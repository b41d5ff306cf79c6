"""From a recipe to a trained model folder: build, resume, train, save."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel, ProgressCallback, TrainerState, set_seed

from titans.data.corpora import local_files
from titans.data.indexed_dataset import build_indexed_dataset
from titans.data.packing import PieceDataset
from titans.data.tokenizers import BYTES, check_vocabulary, largest_id, load_tokenizer
from titans.error_text import first_line
from titans.errors import TitansError
from titans.models.configuration import TitansConfig
from titans.models.modeling import TitansForCausalLM
from titans.training.arguments import StreamTrainingArguments
from titans.training.callbacks import ProgressBar, StopOnInterrupt
from titans.training.checkpoints import last_intact_checkpoint
from titans.training.kept_recipe import check_same_experiment, save_recipe
from titans.training.pretrained import load_config, load_model
from titans.training.recipe import Recipe
from titans.training.trainer import StreamTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LEAST_TRAINING = {  # what transformers accepts and then cannot work with
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "dataloader_num_workers": 0,
    "learning_rate": 0,
    "weight_decay": 0,
}
_SEEDS = 1 << 32  # that NumPy can be seeded with


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """What training left.

    Args:
        folder: the model folder.
        steps: optimizer steps in total, those before a resume included.
        losses: training loss by step, as logged.
        evaluations: evaluation loss by step.
    """

    folder: Path
    steps: int
    losses: Mapping[int, float]
    evaluations: Mapping[int, float]


def train(recipe: Recipe, *, report: Callable[[str], None] = print) -> TrainingResult:
    """Run an experiment, or go on with it from its last whole checkpoint.

    The model and its tokenizer are saved in `training.output_dir`, beside the checkpoints, the token ids and
    the recipe as it was run.

    Args:
        recipe: the experiment.
        report: called with one line at each stage. Default: print.

    Returns:
        What training left.

    Raises:
        TitansError: the recipe, the data or the output folder does not work out.
        KeyboardInterrupt: Ctrl-C; the message says where the resumable checkpoint is.
    """
    for source in (*recipe.data.train, *recipe.data.evaluation):
        local_files(source)  # a misspelt path is known before anything is built
    args = training_arguments(recipe)
    if args.process_index > 0:
        report = _say_nothing
    folder = Path(str(args.output_dir))
    set_seed(args.seed)
    tokenizer = _load_tokenizer(recipe)
    model = build_model(recipe.model, tokenizer)
    checkpoint = last_intact_checkpoint(folder)
    if checkpoint is not None:
        check_same_experiment(folder, recipe)
    size = model.num_parameters() / 1e6
    report(f"model: {size:,.2f} M parameters ({model.config.kind}), on {args.device}")

    with args.main_process_first(desc="tokenizing"):
        train_set, evaluation_set = _datasets(recipe, tokenizer, args, resuming=checkpoint is not None)
    tokens, documents = len(train_set.documents.tokens), len(train_set.documents)
    report(f"data: {tokens:,} tokens in {documents:,} documents, {len(train_set):,} batches an epoch")
    if args.should_save:
        save_recipe(folder, recipe)

    try:
        trainer = StreamTrainer(model, args, train_set, evaluation_set, processing_class=tokenizer)
    except (ValueError, RuntimeError, ImportError) as error:
        raise TitansError(f"training cannot be set up as the training section says: {first_line(error)}") from error
    state = _run(trainer, folder, checkpoint, report)
    log = state.log_history
    losses = {int(entry["step"]): entry["loss"] for entry in log if "loss" in entry}
    evaluations = {int(entry["step"]): entry["eval_loss"] for entry in log if "eval_loss" in entry}
    if losses:
        report(f"training loss at the end: {losses[max(losses)]:.4f} nats/token")
    report(f"saved: {folder} (titans generate {folder} --prompt TEXT)")
    return TrainingResult(folder, state.global_step, losses, evaluations)


def training_arguments(recipe: Recipe) -> StreamTrainingArguments:
    """Complete the training section with defaults that fit this machine.

    Args:
        recipe: the experiment; whatever its training section sets is kept.

    Returns:
        The arguments: bf16 where a GPU has it, TensorBoard where it is installed, two checkpoints kept, and an
        evaluation with every checkpoint where there is evaluation data.

    Raises:
        TitansError: transformers refuses them.
    """
    gpu = torch.cuda.is_available()
    section = dict(recipe.training)
    defaults: dict[str, Any] = {
        "use_cpu": not torch.accelerator.is_available(),
        "bf16": gpu and torch.cuda.is_bf16_supported() and not section.get("fp16") and not section.get("use_cpu"),
        "report_to": "tensorboard" if importlib.util.find_spec("tensorboard") else "none",
        "logging_steps": 10,
        "save_total_limit": 2,
        "dataloader_pin_memory": gpu,
        "eval_strategy": "steps" if recipe.data.evaluation else "no",
        "eval_steps": section.get("save_steps", 500),
        # A step in which no document starts gives the initial memory no gradient.
        "ddp_find_unused_parameters": recipe.data.carry_state,
    }
    try:
        args = StreamTrainingArguments(**(defaults | section))
    except (TypeError, ValueError, ImportError) as error:
        raise TitansError(f"the training section does not work: {first_line(error)}") from error
    for name, least in _LEAST_TRAINING.items():
        value = getattr(args, name)
        if value is not None and not value >= least:  # NaN is no less than anything
            raise TitansError(f"training.{name} is {value}, expected at least {least}")
    try:
        _ = args.objective
    except TitansError as error:
        raise TitansError(f"training.{error}") from None
    for name in ("seed", "data_seed"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < _SEEDS:
            raise TitansError(f"training.{name} is {value}, expected a whole number from 0 to {_SEEDS - 1}")
    if args.eval_strategy != "no" and not recipe.data.evaluation:
        raise TitansError("training.eval_strategy asks for an evaluation, but there is no data.evaluation")
    return args


def build_model(model: Mapping[str, Any] | str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Make a new model, or load the one to go on from.

    Args:
        model: `TitansConfig` fields, or a model folder or hub id. Without `vocab_size` and the ids of the
            special tokens, the tokenizer's are taken.
        tokenizer: the tokenizer.

    Returns:
        The model.

    Raises:
        TitansError: the fields contradict each other, the folder holds no model, or the tokenizer is larger
            than the vocabulary.
    """
    if isinstance(model, str):
        loaded = load_model(model)
        check_vocabulary(tokenizer, loaded.config.vocab_size)
        return loaded
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    special = {name: getattr(tokenizer, name) for name in names}
    try:
        config = TitansConfig(**({"vocab_size": largest_id(tokenizer) + 1} | special | dict(model)))
    except (ValueError, StrictDataclassError) as error:
        raise TitansError(f"the model section does not work: {first_line(error)}") from error
    check_vocabulary(tokenizer, config.vocab_size)
    return TitansForCausalLM(config)


def _load_tokenizer(recipe: Recipe) -> PreTrainedTokenizerBase:
    if recipe.tokenizer is None and isinstance(recipe.model, str):
        load_config(recipe.model)  # a missing model is not a missing tokenizer
        return load_tokenizer(recipe.model)
    return load_tokenizer(recipe.tokenizer or BYTES)


def _datasets(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: StreamTrainingArguments, *, resuming: bool
) -> tuple[PieceDataset, PieceDataset | None]:
    def pieces(name: str, rows: int, max_tokens: int | None) -> PieceDataset:
        documents = build_indexed_dataset(
            Path(str(args.output_dir), "tokens", name),
            getattr(recipe.data, name),
            tokenizer,
            text_field=recipe.data.text_field,
            max_tokens=max_tokens,
            replace=not resuming,
        )
        return PieceDataset(
            documents,
            recipe.data.sequence_length,
            rows * args.world_size,
            carry_state=recipe.data.carry_state,
            seed=args.seed if args.data_seed is None else args.data_seed,
            pad_token_id=tokenizer.pad_token_id or 0,
            process=args.process_index,
            processes=args.world_size,
        )

    train_set = pieces("train", args.per_device_train_batch_size, recipe.data.max_tokens)
    if not recipe.data.evaluation:
        return train_set, None
    return train_set, pieces("evaluation", args.per_device_eval_batch_size, None)


def _run(trainer: StreamTrainer, folder: Path, checkpoint: Path | None, report: Callable[[str], None]) -> TrainerState:
    """Train from the checkpoint on, if there is anything left to train, and save the model."""
    if checkpoint is not None:
        state: TrainerState = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        if state.global_step >= trainer.total_steps():
            report(f"{checkpoint} is of step {state.global_step:,}, the last: training.max_steps sets a later one")
            _save(load_model(str(checkpoint)), trainer, folder)
            return state
        report(f"resuming from {checkpoint}")
    stop = StopOnInterrupt()
    trainer.add_callback(stop)
    if not trainer.args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(ProgressBar)
    try:
        with stop:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        _check_finite(trainer.model)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_resume_hint(folder)) from None
    except TitansError:
        raise
    except ValueError as error:
        raise TitansError(_divergence(folder, error)) from error
    if stop.requested and trainer.state.global_step < trainer.state.max_steps:
        raise KeyboardInterrupt(_resume_hint(folder))
    _save(trainer.model, trainer, folder)
    final: TrainerState = trainer.state
    return final


def _check_finite(model: Any) -> None:
    """Refuse weights that the last step made no numbers; after another one the loss would have told."""
    if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
        raise ValueError("the last step left weights that are not finite")


def _save(model: Any, trainer: StreamTrainer, folder: Path) -> None:
    if trainer.args.should_save:
        model.config.use_cache = True  # Trainer turns it off
        model.save_pretrained(folder)
        tokenizer: Any = trainer.processing_class
        tokenizer.save_pretrained(folder)


def _resume_hint(folder: Path) -> str:
    checkpoint = last_intact_checkpoint(folder)
    if checkpoint is None:
        return "interrupted before the first checkpoint: the same command starts anew"
    return f"interrupted: the same command resumes from {checkpoint}"


def _divergence(folder: Path, error: ValueError) -> str:
    checkpoint = last_intact_checkpoint(folder)
    left = "there is no whole checkpoint yet" if checkpoint is None else f"the last whole checkpoint is {checkpoint}"
    return f"training diverged or cannot go on ({first_line(error)}); {left}; lower training.learning_rate"


def _say_nothing(line: str) -> None:
    """What the other processes report."""
