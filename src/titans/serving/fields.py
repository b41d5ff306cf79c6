"""The fields of a request: what is not done of OpenAI's, and mistakes, are told in a sentence that names the field.

A check ends at the first mistake: a body of a million wrong elements costs no more than one of a single element.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fastapi import Request
from fastapi.routing import APIRoute

from titans.serving.errors import ApiError

# OpenAI's fields that change nothing in an answer, whatever they hold.
IGNORED = frozenset(
    {
        "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "store",
    }
)  # fmt: skip
# OpenAI's fields that are not done, and the values besides null that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0, 0.0),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "presence_penalty": (0, 0.0),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
OF_MESSAGES: dict[str, tuple[Any, ...]] = {  # what clients send back of an answer's message
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}
ROLES = ("system", "developer", "user", "assistant")
MOST_STOPS, LONGEST_STOP = 4, 256


class Message(NamedTuple):
    """A message of a chat, its content as one text."""

    role: str
    text: str


def check_fields(
    body: Any,
    known: Collection[str],
    *,
    unsupported: Mapping[str, tuple[Any, ...]] = {},
    ignored: Collection[str] = (),
    where: str = "",
) -> None:
    """Refuse a body that is no object or has a field that would not be heeded.

    Args:
        body: the body, or an object in it.
        known: the fields that are read.
        unsupported: fields that are not done, and the values besides null that ask for nothing.
        ignored: fields that may hold anything.
        where: the place of the object in the body. Default: it is the body.

    Raises:
        ApiError: 400, with a sentence that names the field.
    """
    if not isinstance(body, dict):
        what = f"{where} is {kind_of(body)}" if where else "the body is no JSON object"
        raise _wrong(where, f"{what}: expected an object" + ("" if where else ", with Content-Type: application/json"))
    for name, value in body.items():
        place = f"{where}.{name}" if where else name
        if name in unsupported:
            harmless = unsupported[name]
            if value is not None and not any(value == x and type(value) is type(x) for x in harmless):
                raise _wrong(place, f"{place} is not supported: leave it out")
        elif name not in known and name not in ignored:
            near = difflib.get_close_matches(name[:64], known, 1)
            advice = f"did you mean {near[0]}?" if near else "leave it out"
            raise _wrong(place[:100], f"{place[:100]!r} is no field of this request: {advice}")


def check_query(request: Request) -> None:
    """Refuse a field in the address that the route does not read.

    Raises:
        ApiError: 400, with a sentence that names the field.
    """
    route: APIRoute = request.scope["route"]
    check_fields(dict(request.query_params), {field.alias for field in route.dependant.query_params})


def prompt(value: Any) -> str | list[int]:
    """Take a prompt: a text or tokens, or a list of one of these.

    Raises:
        ApiError: 400, it is something else, or several.
    """
    if isinstance(value, str):
        return text(value, "prompt")
    if not isinstance(value, list):
        raise _wrong("prompt", f"prompt is {kind_of(value)}: expected a text or a list of tokens")
    if value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise _wrong("prompt", f"prompt holds {len(value):,} prompts: send one in a request")
        return text(value[0], "prompt[0]") if isinstance(value[0], str) else _tokens(value[0], "prompt[0]")
    return _tokens(value, "prompt")


def _tokens(value: list[Any], where: str) -> list[int]:
    tokens = [whole(token) for token in value]
    for i, token in enumerate(tokens):
        if type(token) is not int or token < 0:
            shown = token if type(token) is int else kind_of(token)
            raise _wrong("prompt", f"{where}[{i}] is {shown}: expected a token, which is a whole number from 0 up")
    return tokens


def whole(value: Any) -> Any:
    """Take 8.0 for 8, which JSON does not tell apart; anything else stays as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def messages(value: Any) -> list[Message]:
    """Take the messages of a chat.

    Raises:
        ApiError: 400, there are none, or one is not text of a known role.
    """
    if not isinstance(value, list) or not value:
        found = "empty" if isinstance(value, list) else kind_of(value)
        raise _wrong("messages", f"messages is {found}: expected a list of at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(value)]


def _message(value: Any, where: str) -> Message:
    role = value.get("role") if isinstance(value, dict) else None
    expected = f"expected {', '.join(ROLES[:-1])} or {ROLES[-1]}"
    if role in ("tool", "function"):  # first: such messages have fields that no others have
        raise _wrong(f"{where}.role", f'{where}.role is "{role}", and tools are not supported: {expected}')
    check_fields(value, ("role", "content"), unsupported=OF_MESSAGES, where=where)
    if role not in ROLES:
        found = "unknown" if isinstance(role, str) else kind_of(role)
        raise _wrong(f"{where}.role", f"{where}.role is {found}: {expected}")
    return Message(role, _content(value.get("content"), f"{where}.content"))


def _content(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(value))
    return text(value, where)


def _part(value: Any, where: str) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "text":
        raise _wrong(where, f"{where} is of type {kind[:64]!r}, which is not supported: this model reads text only")
    check_fields(value, ("type", "text"), where=where)
    if kind != "text":
        raise _wrong(f"{where}.type", f'{where}.type is {kind_of(kind)}: expected "text"')
    return text(value.get("text"), f"{where}.text")


def stops(value: Any) -> list[str]:
    """Take strings that end a text: one, or a list of up to four; nothing, or an empty text, is none.

    Raises:
        ApiError: 400, it is something else.
    """
    if value in (None, ""):
        return []
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or len(value) > MOST_STOPS:
        found = f"a list of {len(value):,}" if isinstance(value, list) else kind_of(value)
        raise _wrong("stop", f"stop is {found}: expected up to {MOST_STOPS} texts")
    for i, one in enumerate(value):
        if not 1 <= len(text(one, f"stop[{i}]", "stop")) <= LONGEST_STOP:
            raise _wrong("stop", f"stop[{i}] has {len(one):,} characters: expected 1 to {LONGEST_STOP}")
    return value


def text(value: Any, where: str, param: str | None = None) -> str:
    """Take a text that can be encoded.

    Raises:
        ApiError: 400, it is something else.
    """
    if not isinstance(value, str):
        raise _wrong(param or where, f"{where} is {kind_of(value)}: expected a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong(param or where, f"{where} holds half a surrogate pair, which is no UTF-8") from error
    return value


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, message, param=param or None)


def kind_of(value: Any) -> str:
    """Say what a value of JSON is."""
    names = {type(None): "missing", bool: "true or false", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")
