"""What a schema finds wrong with a request, in the words of the other errors: what there was and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from titans.serving.errors import ApiError
from titans.serving.fields import kind_of

_SHOWN = 40  # characters of a value
_WHOLE, _NUMBER = "a whole number", "a number"
_EXPECTED = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "of at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "of at most"),
    "less_than": ("lt", "below"),
}


def validation_error(found: Mapping[str, Any]) -> ApiError:
    """Tell the first thing that is wrong with a request.

    Args:
        found: one of pydantic's errors.

    Returns:
        Status 400, with a sentence that names the field.
    """
    if found["type"] == "json_invalid":
        return ApiError(400, "the body is no JSON")
    where = ".".join(map(str, found["loc"][1:]))
    return ApiError(400, _sentence(where or "the body", found), param=where or None)


def _sentence(where: str, found: Mapping[str, Any]) -> str:
    what, limits = found["type"], found.get("ctx", {})
    if what == "missing":
        return f"{where} is missing"
    if what == "string_too_long":
        return f"{where} has {len(found['input']):,} characters: expected at most {limits['max_length']:,}"
    if what == "literal_error":
        return f"{where} is {_shown(found['input'])}: expected {limits['expected']}"
    if what in _BOUNDS:
        name, words = _BOUNDS[what]
        bound = limits[name]
        expected = f"{_WHOLE} {words} {bound:,}" if isinstance(bound, int) else f"{_NUMBER} {words} {bound:g}"
        return f"{where} is {_shown(found['input'])}: expected {expected}"
    if what in _EXPECTED:
        value = found["input"]
        return f"{where} is {kind_of(value) if what.endswith('_type') else _shown(value)}: expected {_EXPECTED[what]}"
    return f"{where}: {found['msg'].removeprefix('Value error, ')}"


def _shown(value: Any) -> str:
    """Show a number or a short text as it came, and say of anything else what it is."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else kind_of(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**_SHOWN:
        return f"{value}"
    return kind_of(value)
