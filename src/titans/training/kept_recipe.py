"""The recipe that is kept with the checkpoints of its training: another one is not gone on with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titans.errors import TitansError
from titans.io import atomic
from titans.io.yaml import format_yaml, parse_yaml
from titans.training.checkpoints import ELSEWHERE
from titans.training.recipe import Recipe

RECIPE_FILE = "recipe.yaml"
FIXED_TRAINING = ("per_device_train_batch_size", "gradient_accumulation_steps", "seed", "data_seed")


def save_recipe(folder: Path, recipe: Recipe) -> None:
    """Write a recipe as it is run into the folder of its checkpoints."""
    atomic.write(folder / RECIPE_FILE, format_yaml(_as_yaml(recipe)).encode())


def check_same_experiment(folder: Path, recipe: Recipe) -> None:
    """Refuse to go on from the checkpoints of another experiment: silently, that would be a third one."""
    path = folder / RECIPE_FILE
    try:
        before = _decisive(parse_yaml(path.read_text(encoding="utf-8"), str(path)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise TitansError(f"{folder} holds checkpoints but no readable {path.name}: {ELSEWHERE}") from error
    now = _decisive(_as_yaml(recipe))
    for key in before | now:
        if before.get(key) != now.get(key):
            raise TitansError(
                f"{folder} holds checkpoints of another experiment ({key} was {before.get(key)}, now "
                f"it is {now.get(key)}): {ELSEWHERE}"
            )


def _decisive(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What a training cannot go on without, by dotted key."""
    training = {key: value for key, value in recipe["training"].items() if key in FIXED_TRAINING}
    sections = {"model": recipe["model"], "data": recipe["data"], "training": training}
    decisive = {"tokenizer": recipe["tokenizer"]}
    for name, section in sections.items():
        decisive |= {f"{name}.{k}": v for k, v in section.items()} if isinstance(section, Mapping) else {name: section}
    return decisive


def _as_yaml(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain YAML values, defaults included."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(recipe), default=str))
    return plain
