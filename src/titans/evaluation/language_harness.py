"""EleutherAI's lm-evaluation-harness on a model in this process: its tasks, and its requests to the model."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from titans.data.hub import hub_or_cache
from titans.data.language_tasks import LocalTask
from titans.data.reasons import first_line
from titans.errors import TitansError

Progress = Callable[[float], None]

WINDOW = 2048  # tokens of a window where neither the user nor the model sets them: the harness's own default
UNCUT = 1 << 40  # more tokens than any prompt has

# Where the tasks of the usual table are: reading all of the harness's definitions takes half a minute.
FOLDERS = {
    "arc_challenge": "arc",
    "arc_easy": "arc",
    "boolq": "super_glue/boolq",
    "hellaswag": "hellaswag",
    "lambada_openai": "lambada",
    "piqa": "piqa",
    "social_iqa": "siqa",
    "wikitext": "wikitext",
    "winogrande": "winogrande",
}


def require_harness() -> None:
    """Refuse to go on without the packages.

    Raises:
        TitansError: they are not installed.
    """
    try:
        import lm_eval.models.huggingface
        import lm_eval.tasks  # noqa: F401
    except ImportError as error:
        raise TitansError(
            f"evaluation on lm-evaluation-harness needs further packages ({error}): pip install -e '.[eval]'"
        ) from error


class Tasks:
    """The harness's task definitions.

    Args:
        names: the tasks that will be asked for.

    Raises:
        TitansError: one of them is no task of the harness.
    """

    def __init__(self, names: Sequence[str]) -> None:
        from lm_eval import tasks

        root = Path(tasks.__file__).parent
        with _quiet():
            if all(name in FOLDERS for name in names):
                folders = sorted({str(root / FOLDERS[name]) for name in names})
                self._manager: Any = tasks.TaskManager(include_path=folders, include_defaults=False)
            else:
                self._manager = tasks.TaskManager()
        for name in names:
            if name not in self._manager.all_subtasks:
                what = "is a group of tasks: name them one by one" if name in self._manager.all_tasks else "is no task"
                raise TitansError(f'"{name}" {what} of lm-evaluation-harness (lm-eval ls subtasks shows all)')

    def load(self, name: str, local: LocalTask | None) -> Any:
        """Make a task, with its data.

        Args:
            name: what the harness calls it.
            local: its documents; None to get them from the hub.

        Returns:
            The harness's task object.

        Raises:
            TitansError: the data cannot be had, or lacks a field that the task asks for.
        """
        from jinja2 import UndefinedError

        wanted: Any = {"task": name}
        if local is not None:
            from datasets import Dataset

            data = {"test": Dataset.from_list(local.rows)}
            wanted |= {"custom_dataset": lambda **_: data, "dataset_kwargs": None, "test_split": "test"}
            wanted |= {"training_split": None, "validation_split": None, "fewshot_split": None}
        try:
            with _quiet(), hub_or_cache() if local is None else contextlib.nullcontext():
                (task,) = self._manager.load([{"group": "wanted", "task": [wanted]}])["tasks"].values()
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError, UndefinedError) as error:
            if local is not None:
                reason = f"{type(error).__name__}: {first_line(error)}"
                raise TitansError(f"{local.path} is no data of the task {name}: {reason}") from error
            raise TitansError(
                f"cannot load the data of {name} from the hub ({first_line(error)}): check the network, or give a "
                f"folder with the data as --data"
            ) from error
        return task


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a task gave.

    Args:
        metrics: by name.
        documents: what was measured at each document that was put to the model.
        of: documents that the task has.
    """

    metrics: dict[str, float]
    documents: list[dict[str, Any]]
    of: int


def run_task(lm: Any, task: Any, limit: int | None, seed: int) -> Measured:
    """Put the documents of a task to a model.

    Args:
        lm: from `make_lm`.
        task: from `Tasks.load`.
        limit: at most so many documents, drawn with the seed. None: all.
        seed: also of what the harness draws, as the examples of a few-shot prompt.

    Returns:
        What was measured.

    Raises:
        TitansError: a document lacks a field, or the model fails.
    """
    import lm_eval
    from jinja2 import UndefinedError
    from lm_eval.tasks import TaskManager

    name, chosen = task.task_name, None
    seeds = dict.fromkeys(("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed"), seed)
    try:
        with _quiet():
            of = len(task.eval_docs)
            if limit is not None and limit < of:
                chosen = {name: sorted(random.Random(f"{seed} {name}").sample(range(of), limit))}
            found = lm_eval.simple_evaluate(
                model=lm,
                tasks=[task],
                samples=chosen,
                bootstrap_iters=0,  # our intervals need no bootstrap
                task_manager=TaskManager(include_defaults=False),
                **seeds,
            )
    except TitansError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, UndefinedError) as error:
        raise TitansError(f"{name} fails: {type(error).__name__}: {first_line(error)}") from error
    assert found is not None  # only other processes than the first of several get nothing
    metrics = {}
    for key, value in found["results"][name].items():
        metric, comma, filtered = key.partition(",")
        if comma and isinstance(value, int | float) and not metric.endswith("_stderr"):
            metrics[metric if filtered == "none" else key] = float(value)
    return Measured(metrics, found["samples"][name], of)


def make_lm(model: Any, tokenizer: Any, batch_size: int, max_length: int | None, rolling: bool) -> Any:
    """Make what the harness asks its questions to.

    The harness cuts prompts on the left where they are longer than the model's limit, which it looks up in the
    configuration and takes for 2,048 where there is none. A model without a limit here reads whole prompts, and only
    the windows of whole documents, as of WikiText, have 2,048 tokens.

    Args:
        model: a causal language model, on any device.
        tokenizer: its tokenizer.
        batch_size: sequences of one forward pass.
        max_length: tokens of a window, and the most that is left of a prompt. None: as above.
        rolling: the task reads whole documents in windows.

    Returns:
        A model of the harness that counts in `cut` the prompts that it cut, and reports its progress to `progress`.

    Raises:
        TitansError: the tokenizer has neither a bos nor an eos token.
    """
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise TitansError("the tokenizer has neither a bos nor an eos token, and lm-evaluation-harness needs one")
    if max_length is None and not has_limit(model):
        max_length = WINDOW if rolling else UNCUT
    with _quiet():
        return _lm_class()(
            pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size, max_length=max_length
        )


def has_limit(model: Any) -> bool:
    """Tell whether a model's configuration says how much it can read."""
    config = model.config.get_text_config()
    return any(getattr(config, name, None) is not None for name in ("n_positions", "max_position_embeddings", "n_ctx"))


@functools.cache
def _lm_class() -> Any:
    from lm_eval.models.huggingface import HFLM

    class CountingLM(HFLM):  # type: ignore[misc]
        """The harness's Hugging Face model, with one progress for all and a count of the prompts it cuts."""

        cut = 0
        progress: Progress | None = None
        _done, _rows = 0, 0

        def loglikelihood(self, requests: Any, disable_tqdm: bool = True) -> Any:
            self._rows = len(requests)
            return super().loglikelihood(requests, disable_tqdm=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = True) -> Any:
            lengths = (len(self.tok_encode(request.args[0])) for request in requests)
            self._rows = sum(math.ceil(length / self.max_length) for length in lengths)
            return super().loglikelihood_rolling(requests, disable_tqdm=True)

        def generate_until(self, requests: Any, disable_tqdm: bool = True) -> Any:
            self._rows = len(requests)
            return super().generate_until(requests, disable_tqdm=True)

        def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = True, **options: Any) -> Any:
            self.cut += sum(len(context) + len(rest) > self.max_length + 1 for _, context, rest in requests)
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, **options)

        def tok_batch_encode(self, strings: Any, *args: Any, left_truncate_len: Any = None, **options: Any) -> Any:
            if left_truncate_len:
                self.cut += sum(len(self.tok_encode(text)) > left_truncate_len for text in strings)
            return super().tok_batch_encode(strings, *args, left_truncate_len=left_truncate_len, **options)

        def _model_call(self, inps: Any, *args: Any, **options: Any) -> Any:
            logits = super()._model_call(inps, *args, **options)
            if bool(logits.isnan().any()):  # accuracies would count as if the first answer had been chosen
                raise TitansError("the model answers NaN: its weights are damaged, or its training diverged")
            self._advance(len(inps))
            return logits

        def _model_generate(self, context: Any, *args: Any, **options: Any) -> Any:
            tokens = super()._model_generate(context, *args, **options)
            self._advance(len(context))
            return tokens

        def _advance(self, rows: int) -> None:
            self._done += rows
            if self.progress is not None:
                self.progress(min(1.0, self._done / max(self._rows, 1)))

    return CountingLM


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the harness's and the data sets' messages and bars away: we show our own, and git, which it asks, its."""
    import datasets
    import tqdm
    from lm_eval import evaluator
    from lm_eval.api import task

    loggers = [logging.getLogger(name) for name in ("lm_eval", "huggingface_hub", "datasets")]
    levels, bar, shown = [logger.level for logger in loggers], task.tqdm, datasets.are_progress_bars_disabled()
    git: Any = evaluator.get_git_commit_hash
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        datasets.disable_progress_bars()
        task.tqdm = functools.partial(tqdm.tqdm, disable=True)
        evaluator.get_git_commit_hash = lambda: None
        yield
    finally:
        evaluator.get_git_commit_hash = git
        task.tqdm = bar
        if not shown:
            datasets.enable_progress_bars()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
