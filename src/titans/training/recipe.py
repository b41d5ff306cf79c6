"""One YAML file = one experiment: read it, apply overrides, and refuse what is misspelt at once."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titans.data.corpora import HubSource, Source
from titans.errors import TitansError
from titans.io.recipe import check_section, read_recipe


@dataclasses.dataclass(frozen=True)
class DataRecipe:
    """What to read, and in which pieces.

    Args:
        train: files, folders, globs, hub ids or `{hub: ID, name: CONFIGURATION, split: SPLIT}`; one or a
            list.
        evaluation: the same for evaluation. Default: none.
        sequence_length: tokens of one piece, the length that training back-propagates through. Default 512.
        carry_state: whether the memory goes on from piece to piece of a long document. Default true.
        text_field: the jsonl key or column that holds the text. Default "text".
        max_tokens: stop reading the training data after this many tokens. Default: read everything.
    """

    train: tuple[Source, ...]
    evaluation: tuple[Source, ...] = ()
    sequence_length: int = 512
    carry_state: bool = True
    text_field: str = "text"
    max_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One experiment.

    Args:
        model: `TitansConfig` fields, or the path of a pretrained model to go on from.
        data: what to read.
        tokenizer: "bytes", or a tokenizer's path or hub id. Default "bytes"; a pretrained model's own if it
            has one.
        training: `StreamTrainingArguments` fields: those of `transformers.TrainingArguments`, `write_cost` and
            `piece_length`.
    """

    model: Mapping[str, Any] | str
    data: DataRecipe
    tokenizer: str | None = None
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the YAML file.
        overrides: `key=value` with dots between the levels (`training.max_steps=100`), values read as YAML.

    Returns:
        The recipe. `training.output_dir` is `runs/` and the file's name unless it is given.

    Raises:
        TitansError: the file is unreadable or no YAML, a key is unknown (the nearest is suggested), or a
            value has the wrong type.
    """
    content = read_recipe(path, overrides, expected="model, tokenizer, data and training")
    return parse_recipe(content, default_output_dir=f"runs/{path.stem}")


def parse_recipe(content: Mapping[str, Any], *, default_output_dir: str) -> Recipe:
    """Check the content of a recipe.

    Args:
        content: the sections, as YAML gives them.
        default_output_dir: taken where `training.output_dir` is not given.

    Returns:
        The recipe.

    Raises:
        TitansError: see `load_recipe`.
    """
    from titans.models.configuration import TitansConfig
    from titans.training.arguments import StreamTrainingArguments

    content = {key: value for key, value in content.items() if value is not None}
    check_section(content, typing.get_type_hints(Recipe) | {"data": Mapping}, "")
    for section in ("model", "data"):
        if section not in content:
            raise TitansError(f'the recipe has no "{section}" section')
    model = content["model"]
    if not isinstance(model, str):
        check_section(model, TitansConfig.hints(), "model.")
    training = dict(content.get("training", {}))
    training["output_dir"] = training.get("output_dir") or default_output_dir
    hints = typing.get_type_hints(StreamTrainingArguments)
    known = [field.name for field in dataclasses.fields(StreamTrainingArguments) if field.init]
    check_section(training, {name: hints[name] for name in known}, "training.")
    return Recipe(model, _parse_data(content["data"]), content.get("tokenizer"), training)


def _parse_data(section: Mapping[str, Any]) -> DataRecipe:
    sources = ("train", "evaluation")
    check_section(section, typing.get_type_hints(DataRecipe) | dict.fromkeys(sources, Any), "data.")
    if "train" not in section:
        raise TitansError('the recipe has no "data.train": name a file, a folder, a glob or a hub id to train on')
    parsed = {key: _parse_sources(section.get(key) or [], f"data.{key}") for key in sources}
    data = DataRecipe(**{**section, **parsed})
    if not data.train:
        raise TitansError("data.train is empty: name a file, a folder, a glob or a hub id to train on")
    for key in ("sequence_length", "max_tokens"):
        value = getattr(data, key)
        if value is not None and value < 1:
            raise TitansError(f"data.{key} is {value}, expected at least 1")
    return data


def _parse_sources(value: object, key: str) -> tuple[Source, ...]:
    if isinstance(value, str | Mapping):
        value = [value]
    if not isinstance(value, list):
        raise TitansError(f"{key} is {value!r}, expected a path, a hub id, a mapping with hub: ID, or a list of them")
    sources: list[Source] = []
    for item in value:
        if isinstance(item, Mapping) and "hub" in item:
            check_section(item, typing.get_type_hints(HubSource), f"{key}.")
            sources.append(HubSource(**item))
        elif isinstance(item, str):
            sources.append(item)
        else:
            raise TitansError(f"{key} holds {item!r}, expected a path, a hub id or a mapping with hub: ID")
    return tuple(sources)
