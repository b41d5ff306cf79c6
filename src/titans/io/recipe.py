"""How recipes are read: YAML as people write it, overrides, and what is misspelt refused at once."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from titans.errors import TitansError
from titans.io.text import decode
from titans.io.yaml import parse_yaml

_SHOWN = 80  # characters of a value in a message


def read_recipe(path: Path, overrides: Sequence[str] = (), *, expected: str) -> dict[str, Any]:
    """Read the sections of a recipe.

    Args:
        path: the YAML file.
        overrides: `key=value` with dots between the levels (`training.max_steps=100`), values read as YAML.
        expected: the sections that a recipe of this kind has, for the message where there are none.

    Returns:
        The sections, as YAML gives them.

    Raises:
        TitansError: the file is unreadable, no YAML or no mapping, or an override is none.
    """
    content = _read_yaml(path, expected)
    for override in overrides:
        apply_override(content, override)
    return content


def check_section(section: Mapping[str, Any], hints: Mapping[str, Any], prefix: str) -> None:
    """Refuse unknown keys, with the nearest suggested, and values of the wrong type.

    Args:
        section: the section.
        hints: its possible keys and the type of each; a dataclass stands for a section of its fields.
        prefix: what the section is called, with a dot at the end.

    Raises:
        TitansError: a key is unknown, or a value cannot be what its type hint says.
    """
    for key in section:
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, n=1, cutoff=0.5)
            hint = f'did you mean "{prefix}{near[0]}"?' if near else f"expected one of: {', '.join(sorted(hints))}"
            raise TitansError(f'unknown key "{prefix}{key}" in the recipe: {hint}')
    for key, value in section.items():
        if not _fits(value, hints[key]):
            raise TitansError(
                f"{prefix}{key} is {_short(repr(value))} ({type(value).__name__}), expected {_spell(hints[key])}"
            )
        if dataclasses.is_dataclass(hints[key]):
            check_section(value, typing.get_type_hints(hints[key]), f"{prefix}{key}.")


def _fits(value: object, hint: Any) -> bool:
    """Whether a YAML value can be what the type hint says; hints beyond plain values accept everything."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    hint = typing.get_origin(hint) or hint
    if hint is Mapping or hint is dict or dataclasses.is_dataclass(hint):
        return isinstance(value, Mapping)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (str, bool, list, types.NoneType):
        return isinstance(value, hint)
    return True


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _spell(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_spell(option) for option in typing.get_args(hint) if option is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        return "a mapping of options"
    hint = typing.get_origin(hint) or hint
    return str(getattr(hint, "__name__", hint))


def _read_yaml(path: Path, expected: str) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TitansError(f"cannot read the recipe {path}: {error.strerror or error}") from error
    content = parse_yaml(decode(data, f"the recipe {path}"), f"the recipe {path}")
    if not isinstance(content, dict):
        raise TitansError(f"the recipe {path} holds no sections: expected {expected}")
    return content


def apply_override(content: dict[str, Any], override: str) -> None:
    """Replace one value of a recipe, in place.

    Args:
        content: the sections.
        override: `key=value` with dots between the levels, the value read as YAML.

    Raises:
        TitansError: it is not of this form, or leads through a value.
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise TitansError(
            f'"{_short(override)}" is no override: expected key=value, for example training.max_steps=100'
        )
    value = parse_yaml(text, f'the value of "{_short(override)}"')
    *parents, last = key.split(".")
    section = content
    for depth, parent in enumerate(parents, start=1):
        if section.get(parent) is None:  # an empty section is an absent one
            section[parent] = {}
        if not isinstance(section[parent], dict):
            raise TitansError(f'"{_short(override)}": "{".".join(parents[:depth])}" is a value, not a section')
        section = section[parent]
    section[last] = value
