"""One YAML file = one comparison: read and checked before anything is trained."""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titans.data.corpora import documents
from titans.data.synthetic.registry import make_task
from titans.data.synthetic.task import Size, SyntheticTask, parse_sizes
from titans.data.synthetic.text_pieces import LIMIT, TextPieces
from titans.errors import TitansError
from titans.evaluation import model_zoo
from titans.evaluation.synthetic_training import Budget
from titans.io.recipe import check_section, read_recipe

TOLERANCE = 0.03  # of the parameters
_TYPES: dict[str, Any] = {  # of the sections, as YAML gives them
    "task": str | dict,
    "train": list | str | int,
    "lengths": list | str | int,
    "validation": list | str | int,
    "budget": dict,
    "learning_rates": list,
    "seeds": list,
    "sequences": int,
    "parameters": int,
    "allow_unequal": bool,
    "model": dict,
    "models": dict,
}


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """One model of a comparison.

    Args:
        name: what to call it.
        fields: see `titans.evaluation.model_zoo.make_model`.
        parameters: how many it has, embeddings not counted.
        learning_rates: to try.
    """

    name: str
    fields: Mapping[str, Any]
    parameters: int
    learning_rates: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A checked recipe.

    Args:
        task_fields: the task as the recipe has it, `name` and options.
        task: the task itself.
        train: sizes to train at.
        lengths: sizes to test at.
        validation: sizes to choose the learning rate at.
        budget: of every training, but for the learning rate.
        seeds: of initialisations and training data; the first is the one of the sweep.
        sequences: test sequences at each size.
        models: the models.
    """

    task_fields: Mapping[str, Any]
    task: SyntheticTask
    train: tuple[Size, ...]
    lengths: tuple[Size, ...]
    validation: tuple[Size, ...]
    budget: Budget
    seeds: tuple[int, ...]
    sequences: int
    models: tuple[ModelSpec, ...]


def load_comparison(path: Path, overrides: Sequence[str] = ()) -> Comparison:
    """Read and check the recipe of a comparison.

    Args:
        path: the YAML file.
        overrides: `key=value` with dots between the levels (`budget.steps=100`), values read as YAML.

    Returns:
        The comparison.

    Raises:
        TitansError: the file is unreadable or no YAML, a key is unknown (the nearest is suggested), a value does not
            work, or the models' parameters differ by more than 3 % without `allow_unequal: true`.
    """
    content = read_recipe(path, overrides, expected="task, train, lengths, budget and models")
    content = {key: value for key, value in content.items() if value is not None}
    check_section(content, _TYPES, "")
    for section in ("task", "train", "budget", "models"):
        if section not in content:
            raise TitansError(f'the recipe has no "{section}" section')
    task_fields, task = _task(content["task"])
    sizes = {
        name: parse_sizes(content[name] if isinstance(content[name], list) else [content[name]])
        for name in ("train", "lengths", "validation")
        if name in content
    }
    train, longest = sizes["train"], max(sizes["train"], key=lambda size: (size.length, size.pairs or 0))
    lengths, validation = tuple(dict.fromkeys(sizes.get("lengths", train))), sizes.get("validation", (longest,))
    for size in dict.fromkeys((*train, *lengths, *validation)):
        task.check(size)
    sequences = content.get("sequences", 256)
    if sequences < 1:
        raise TitansError(f"sequences is {sequences}, expected at least 1")
    models = _models(content, task.vocab_size)
    if not content.get("allow_unequal", False):
        _check_equal(models)
    budget, seeds = _budget(content["budget"]), _seeds(content.get("seeds", [1, 2, 3]))
    return Comparison(task_fields, task, train, lengths, validation, budget, seeds, sequences, models)


def _task(section: str | Mapping[str, Any]) -> tuple[Mapping[str, Any], SyntheticTask]:
    task = {"name": section} if isinstance(section, str) else dict(section)
    name, options = task.get("name"), {key: value for key, value in task.items() if key != "name"}
    if not isinstance(name, str):
        raise TitansError('the task has no "name": expected one as mqar, parity or text')
    if name != "text":
        return task, make_task(name, options)
    check_section(options, {"data": str | list, "text_field": str, "max_bytes": int}, "task.")
    data = options.get("data")
    if not data:
        raise TitansError("task.data is empty: name a file, a folder or a glob to read the text from")
    limit: Any = options.get("max_bytes", LIMIT)
    return task, TextPieces.read(documents(data, text_field=options.get("text_field", "text")), limit)


def _budget(section: Mapping[str, Any]) -> Budget:
    hints = {name: hint for name, hint in typing.get_type_hints(Budget).items() if name != "learning_rate"}
    check_section(section, hints, "budget.")
    for name in ("steps", "batch"):
        if name not in section:
            raise TitansError(f'the recipe has no "budget.{name}"')
    return Budget(**section)


def _seeds(seeds: list[Any]) -> tuple[int, ...]:
    whole = all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds)
    if not seeds or not whole or len(set(seeds)) < len(seeds):
        raise TitansError(f"seeds is {seeds}, expected different whole numbers of at least 0, as [1, 2, 3]")
    return tuple(seeds)


def _models(content: Mapping[str, Any], vocab_size: int) -> tuple[ModelSpec, ...]:
    found = []
    for name, section in content["models"].items():
        if not re.fullmatch(r"\w[\w.+-]*", str(name)):
            raise TitansError(f'"{name}" is no name for a model: expected letters, digits and . + - _')
        if not isinstance(section or {}, Mapping):
            raise TitansError(f"models.{name} is {section!r}, expected fields, as variant: lmm")
        given = dict(section or {})
        rates = given.pop("learning_rates", content.get("learning_rates", [Budget.learning_rate]))
        found.append(_model(str(name), given, content, vocab_size, _rates(rates)))
    if not found:
        raise TitansError("models is empty: name at least one")
    if len({len(spec.learning_rates) for spec in found}) > 1:
        numbers = ", ".join(f"{c.name} {len(c.learning_rates)}" for c in found)
        raise TitansError(f"every model must have as many learning rates as the others, not {numbers}")
    return tuple(found)


def _model(
    name: str, given: dict[str, Any], content: Mapping[str, Any], vocab_size: int, rates: tuple[float, ...]
) -> ModelSpec:
    from titans.models.configuration import merge_fields

    ours = "preset" not in given and "model_type" not in given
    fields = merge_fields(content.get("model", {}), given) if ours else given
    try:
        if ours and "parameters" in content:
            fields = model_zoo.matched(fields, vocab_size, content["parameters"])
        return ModelSpec(name, fields, model_zoo.count(fields, vocab_size), rates)
    except TitansError as error:
        raise TitansError(f"model {name}: {error}") from error


def _rates(rates: Any) -> tuple[float, ...]:
    listed: list[Any] = rates if isinstance(rates, list) else [rates]
    numbers = all(isinstance(rate, int | float) and 0 < rate < math.inf for rate in listed)
    if not listed or not numbers or len(set(listed)) < len(listed):
        raise TitansError(f"learning_rates is {rates}, expected different positive numbers, as [1e-3, 3e-3]")
    return tuple(float(rate) for rate in listed)


def _check_equal(found: Sequence[ModelSpec]) -> None:
    least, most = (choose(found, key=lambda c: c.parameters) for choose in (min, max))
    if most.parameters > least.parameters * (1 + TOLERANCE):
        raise TitansError(
            f"{most.name} has {most.parameters:,} parameters and {least.name} {least.parameters:,} (embeddings not "
            f"counted), more than {TOLERANCE:.0%} apart: set parameters, which fits the feed-forward layers, or "
            "allow_unequal: true"
        )
