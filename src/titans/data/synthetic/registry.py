"""All synthetic tasks by name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from titans.data.synthetic.mqar import MQAR, ForgettingMQAR
from titans.data.synthetic.needle import Needle
from titans.data.synthetic.state_tracking import STATE_TASKS, StateTracking
from titans.data.synthetic.task import SyntheticTask
from titans.errors import TitansError

RECALL_TASKS = {kind.name: kind for kind in (MQAR, ForgettingMQAR, Needle)}
TASKS: dict[str, type[SyntheticTask]] = {**RECALL_TASKS, **dict.fromkeys(STATE_TASKS, StateTracking)}


def make_task(task: str, options: Mapping[str, Any] | None = None) -> SyntheticTask:
    """Make a synthetic task.

    Args:
        task: one of `TASKS`.
        options: fields of its class, as `vocabulary` or `modulus`. Default: none.

    Returns:
        The task.

    Raises:
        TitansError: the task is unknown, or has no such option, or the option does not work.
    """
    if task not in TASKS:
        near = difflib.get_close_matches(task, TASKS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"expected one of {', '.join(TASKS)}"
        raise TitansError(f'there is no task "{task}": {hint}')
    kind, given = TASKS[task], dict(options or {})
    known = [field.name for field in dataclasses.fields(kind) if field.name != "task"]  # type: ignore[arg-type]
    for option in given:
        if option not in known:
            raise TitansError(f"{task} has no option {option!r}: expected one of {', '.join(known)}")
    try:
        return kind(**({"task": task} if kind is StateTracking else {}), **given)
    except TypeError as error:  # a comparison of what is no number
        raise TitansError(f"the options of {task} do not work: {error}") from error
