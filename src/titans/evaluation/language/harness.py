"""lm-evaluation-harness itself: is it there, in silence, and one of its tasks run on a model."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import numbers
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from titans.error_text import first_line
from titans.errors import TitansError
from titans.extras import missing

# What the definition of a task can fail with: each is code of its own, and asks for packages and data of its own.
FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def require_harness() -> None:
    """Refuse to go on without the packages.

    Raises:
        TitansError: they are not installed.
    """
    try:
        import lm_eval.models.huggingface
        import lm_eval.tasks  # noqa: F401
    except ImportError as error:
        raise missing(error, "eval", "evaluation on lm-evaluation-harness") from error


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Turn what the code of a task raises into one sentence.

    Args:
        what: begins it.

    Yields:
        Nothing.

    Raises:
        TitansError: the body failed; one of ours passes unchanged.
    """
    from jinja2 import TemplateError

    try:
        yield
    except TitansError:
        raise
    except ImportError as error:
        raise TitansError(f"{what}: it needs further packages ({first_line(error)})") from error
    except (*FAILURES, TemplateError) as error:
        raise TitansError(f"{what}: {type(error).__name__}: {first_line(error)}") from error


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a task gave.

    Args:
        metrics: by name; that of a filter has its name after a comma.
        rows: by the same names, what was measured at each document.
        documents: that were put to the model.
        of: documents that the task has.
    """

    metrics: dict[str, float]
    rows: dict[str, list[Any]]
    documents: int
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
        TitansError: a document lacks a field, a package is missing, or the model fails.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    name, chosen = task.task_name, None
    seeds = dict.fromkeys(("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed"), seed)
    with quiet(), refused(f"{name} fails"):
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
    assert found is not None  # only other processes than the first of several get nothing
    samples = found["samples"][name]  # one for each document and filter
    metrics, rows = {}, {}
    for key, value in found["results"][name].items():
        metric, comma, filtered = key.partition(",")
        if not comma or not isinstance(value, numbers.Real) or metric.endswith("_stderr"):
            continue
        measured = [_plain(one[metric]) for one in samples if one["filter"] == filtered and metric in one]
        if metric.isdigit():  # RULER's are called as the length of the text, and -1 at a text of another length
            measured = [one for one in measured if one != -1]
        if measured:
            shown = metric if filtered == "none" else key
            metrics[shown], rows[shown] = float(value), measured
    return Measured(metrics, rows, len({one["doc_id"] for one in samples}), of)


def _plain(measured: Any) -> Any:
    """Python's number where it is NumPy's, whose truth values are none."""
    return measured.item() if isinstance(measured, np.generic) else measured


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the harness's and the data sets' messages and bars away, as we show our own.

    Nor does it ask git, the compiler and the graphics card, each by a process of its own, for a report of the machine.

    Yields:
        Nothing.
    """
    import datasets
    import tqdm
    from lm_eval import evaluator

    loggers = [logging.getLogger(name) for name in ("lm_eval", "huggingface_hub", "datasets")]
    levels, shown = [logger.level for logger in loggers], datasets.are_progress_bars_disabled()
    bar, git, machine = tqdm.tqdm.__init__, evaluator.get_git_commit_hash, evaluator.add_env_info
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        datasets.disable_progress_bars()
        tqdm.tqdm.__init__ = lambda self, *args, **options: bar(self, *args, **{**options, "disable": True})
        evaluator.get_git_commit_hash = lambda: None
        evaluator.add_env_info = lambda storage: None
        with contextlib.redirect_stdout(io.StringIO()):  # what tasks print
            yield
    finally:
        evaluator.get_git_commit_hash, evaluator.add_env_info = git, machine
        tqdm.tqdm.__init__ = bar
        if not shown:
            datasets.enable_progress_bars()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
