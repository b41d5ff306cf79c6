"""YAML as people write it: what is read is what stands there, or it is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from titans.errors import TitansError

_NUMBER = r"\d+(_\d+)*"
_DIGITS = 100  # more than 64 bits take, and fewer than Python refuses to convert
_LARGEST = 1 << 63


def parse_yaml(text: str, what: str) -> Any:
    """Read YAML as recipes are read.

    Args:
        text: the YAML.
        what: names it, for the message.

    Returns:
        What it says: dictionaries, lists, texts, numbers, booleans and None.

    Raises:
        TitansError: it is no YAML, or says what cannot be read as it is written.
    """
    try:
        return yaml.load(text, _Loader)
    except _Unreadable as error:
        raise TitansError(f"{what}, {error}") from error
    except (yaml.YAMLError, ValueError, LookupError) as error:  # tags, as !!int and !!bool, leave the latter two
        raise TitansError(f"{what} is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise TitansError(f"{what} is not YAML: its brackets are nested too deeply") from error


def format_yaml(content: Any) -> str:
    """Write YAML that `parse_yaml` reads as the same, as do programs that know YAML 1.1 only."""
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


class _Unreadable(Exception):
    """A node of YAML that cannot be what is written there; its line and the reason."""

    def __init__(self, node: yaml.Node, reason: str) -> None:
        super().__init__(f"line {node.start_mark.line + 1}: {reason}")


class _Loader(yaml.SafeLoader):
    """YAML as people write it, nearer to 1.2 than to 1.1: a number is the number that one reads, all else is words.

    So `010` is ten, `4e-4` a number, and `1:30`, `no` and `2024-02-30` are words. What would be read as another number
    than is written, and a key that stands twice, are refused.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - replaces the class's own, as below
    yaml_constructors = {  # noqa: RUF012 - no dates, sets or bytes, also where a tag asks for them
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "str", "seq", "map")
    }

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Read digits as decimal whatever they begin with, and 0x, 0o and 0b as in Python."""
        text = self.construct_scalar(node).replace("_", "")
        based = re.fullmatch(r"[-+]?0([xob])(.+)", text)
        if len(text) > _DIGITS:
            raise _Unreadable(node, f"a number has {len(text):,} digits")
        value = int(text, {"x": 16, "o": 8, "b": 2}[based[1]] if based else 10)
        if not -_LARGEST <= value < _LARGEST:
            raise _Unreadable(node, f"{text} is beyond whole numbers of 64 bits")
        return value

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Read a decimal number, .inf or .nan."""
        text = self.construct_scalar(node).replace("_", "").lower()
        if text.endswith((".inf", ".nan")):
            return float(text.replace(".", ""))
        value = float(text)
        if math.isinf(value) or (value == 0 and re.search("[1-9]", text.split("e")[0])):
            raise _Unreadable(node, f"{text} is beyond the numbers of a computer, which reads it as {value}")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Read a mapping whose keys all differ."""
        seen = set()
        for key, _ in node.value:
            if key.value == "<<" or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise _Unreadable(key, f'the key "{key.value}" stands twice')
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that are something else to the loader, or to one of YAML 1.1."""


for _tag, _pattern, _first in (
    ("bool", r"(?i:true|false)", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", "<<", "<"),
    ("int", rf"[-+]?(0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|{_NUMBER})", "-+0123456789"),
    ("float", rf"[-+]?(({_NUMBER}(\.\d*)?|\.\d+)([eE][-+]?\d+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)", "-+.0123456789"),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))
for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", getattr(_Loader, f"construct_yaml_{_tag}"))
