"""The examples of few-shot prompts: never a question itself."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from titans.errors import TitansError


def keep_questions_out(task: Any) -> tuple[str, str]:
    """See to it that no document of a task is among the examples of its own prompt.

    The harness leaves a question out of its examples only where it knows that both are from one split, and takes the
    questions for examples where a task has nothing else.

    Args:
        task: the harness's object, loaded.

    Returns:
        How many examples a prompt has and where they are from, and what was changed; empty where there are none, and
        where nothing was.

    Raises:
        TitansError: the questions are too few to be each other's examples.
    """
    config, shots = task.config, task.fewshot_cfg
    count, sampler = config.num_fewshot or 0, getattr(task, "sampler", None)
    if not count or sampler is None:
        return "", ""
    asked = set().union(*(_identities(task, document) for document in task.eval_docs))
    pool = list(sampler.fewshot_docs())
    others = [document for document in pool if asked.isdisjoint(_identities(task, document))]
    split = shots.split
    if split is None and shots.samples is None:
        split = config.training_split or config.validation_split or config.test_split
    where = "given by the task" if split is None else f"of its split {split}"
    said = f"{count} {'example' if count == 1 else 'examples'} {where}"
    if len(others) == len(pool):
        return said, ""
    if len(others) >= count:
        sampler.replace_df(others)
        return said, f"{len(pool) - len(others)} examples of {task.task_name} left out, as they are asked themselves"
    if len(pool) <= count:
        raise TitansError(
            f"{task.task_name} begins each prompt with {count} examples, and there are only the {len(pool)} questions "
            "themselves: give more"
        )
    known = shots.split == config.test_split  # where the harness leaves the question out
    shots.split = config.test_split
    said = f"{count} of the other questions as examples"
    return said, "" if known else f"a question of {task.task_name} left out of its own examples"


def _identities(task: Any, document: Any) -> set[str]:
    """What tells a document from others: all its fields, and what it shows as an example, without its number."""
    shots = task.fewshot_cfg
    names = {json.dumps(document, sort_keys=True, default=str)}
    with contextlib.suppress(Exception):  # a question need not have the fields of an example
        choices = task.doc_to_choice(document, shots.doc_to_choice) if shots.doc_to_choice else None
        answer = task.doc_to_target(document, shots.doc_to_target)
        names.add(repr((task.doc_to_text(document, shots.doc_to_text), choices, answer)))
    return names
