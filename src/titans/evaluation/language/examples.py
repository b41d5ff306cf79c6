"""The examples of few-shot prompts: from another split than the questions, and never a question itself."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from titans.data.language_tasks import LocalTask, local_rows
from titans.errors import TitansError
from titans.evaluation.language.harness import refused


def give_local(task: Any, name: str, local: LocalTask, folder: Path) -> None:
    """Give a task that is being made its documents, and the examples of its prompts, from files.

    Args:
        task: the harness's object, its configuration read.
        name: what the harness calls it.
        local: the documents.
        folder: where the file with the examples is, if prompts have any: `TASK_SPLIT.jsonl`, of the split from which
            the stock task takes them.

    Raises:
        TitansError: prompts have examples and there is no such file.
    """
    from datasets import Dataset

    config, shots = task.config, task.fewshot_cfg
    asked, documents = config.test_split or config.validation_split, Dataset.from_list(local.rows)
    if asked is None:  # a class of its own, which says in code what it asks
        task.dataset = {"test": documents, "validation": documents}
        return
    task.dataset = {asked: documents}
    split = _split(task)
    if split is not None and split != asked:
        file = f"{name}_{split}.jsonl"
        rows = local_rows(folder, file)
        if rows is not None:
            task.dataset[split] = Dataset.from_list(rows)
        elif config.num_fewshot:
            raise TitansError(
                f"{name} begins each prompt with {config.num_fewshot} examples of its split {split}, which must "
                f"not come from the questions in {local.path}: give them as {file} in the same folder"
            )
    for field in ("training_split", "validation_split"):
        if getattr(config, field) not in task.dataset:
            setattr(config, field, None)
    if shots.split not in task.dataset:
        shots.split = None


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
    count = task.config.num_fewshot or 0
    sampler = getattr(task, "sampler", None)
    if not count or sampler is None:
        return "", ""
    asked = set().union(*(_names(task, document) for document in task.eval_docs))
    pool = list(sampler.fewshot_docs())
    others = [document for document in pool if asked.isdisjoint(_names(task, document))]
    split = _split(task)
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
    said = f"{count} of the other questions as examples"
    known = task.fewshot_cfg.split == task.config.test_split  # where the harness leaves the question out
    task.fewshot_cfg.split = task.config.test_split
    return said, "" if known else f"a question of {task.task_name} left out of its own examples"


def _split(task: Any) -> str | None:
    """The split from which the harness takes the examples; None where the definition itself has them."""
    config, shots = task.config, task.fewshot_cfg
    split: str | None = shots.split
    if split is None and shots.samples is None:
        split = config.training_split or config.validation_split or config.test_split
    return split


def _names(task: Any, document: Any) -> set[str]:
    """What tells a document from others: all its fields, and what it shows as an example, without its number."""
    shots = task.fewshot_cfg
    names = {json.dumps(document, sort_keys=True, default=str)}
    with contextlib.suppress(TitansError), refused("an example"):  # of which a question need not have the fields
        choices = task.doc_to_choice(document, shots.doc_to_choice) if shots.doc_to_choice else None
        answer = task.doc_to_target(document, shots.doc_to_target)
        names.add(repr((task.doc_to_text(document, shots.doc_to_text), choices, answer)))
    return names
