"""The requests of the API: OpenAI's and ours, and what of OpenAI's is not done."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from titans.serving.errors import ApiError

LARGEST_SEED = (1 << 63) - 1
_TOLD_SEED = (1 << 63) - 1024  # the largest below it that is a double, too, as numbers are in a schema
NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._@+-]{1,63}")  # of a user or a memory; without the colon that joins them
_NAME_RULE = "the name is not 1 to 63 letters, digits or ._@+-, of which one is no point"

# OpenAI's fields that change nothing in an answer, whatever they hold.
IGNORED = frozenset(
    {
        "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "service_tier", "store",
    }
)  # fmt: skip
# OpenAI's fields that are not done, and the values besides null that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (), "best_of": (1,), "echo": (False,), "frequency_penalty": (0, 0.0), "function_call": ("auto", "none"),
    "functions": ([],), "logit_bias": ({},), "logprobs": (False,), "modalities": (["text"],), "moderation": (),
    "n": (1,), "presence_penalty": (0, 0.0), "reasoning_effort": ("none",), "response_format": ({"type": "text"},),
    "suffix": ("",), "tool_choice": ("auto", "none"), "tools": ([],), "top_logprobs": (0,), "verbosity": ("medium",),
    "web_search_options": (),
}  # fmt: skip


class Body(BaseModel):
    """An object of JSON, in which every field that would not be heeded is refused by name, the first at once."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, json_schema_extra={"additionalProperties": False})
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise PydanticCustomError("object", "expected an object of JSON")
        for name, value in body.items():
            if name in cls.unsupported:
                harmless = cls.unsupported[name]
                if value is not None and not any(value == x and type(value) is type(x) for x in harmless):
                    raise PydanticCustomError("field", "not supported, leave it out", {"field": name})
            elif name not in cls.model_fields and name not in cls.ignored:
                raise PydanticCustomError("field", _unknown(name, list(cls.model_fields)), {"field": name})
        return body


def _unknown(name: str, known: list[str]) -> Any:
    near = difflib.get_close_matches(name[:64], known, 1)
    return f"no field of this request, {f'did you mean {near[0]}?' if near else 'leave it out'}"


def check_query(request: Request) -> None:
    """Refuse a field in the address that the route does not read.

    Raises:
        ApiError: 400, with a sentence that names the field.
    """
    route: APIRoute = request.scope["route"]
    known = [field.alias for field in route.dependant.query_params]
    if (name := next((name for name in request.query_params if name not in known), None)) is not None:
        raise ApiError(400, f"{name[:100]}: {_unknown(name, known)}", param=name[:100])


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(_NAME_RULE)
    return text


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text holds half a surrogate pair, which is no UTF-8") from error
    return text


def _whole(value: Any) -> Any:
    """Take 8.0 for 8, which JSON does not tell apart."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_prompt(value: Any) -> Any:
    """Take a list of one text, or of one list of tokens, for what it holds."""
    if not isinstance(value, list) or not value or not isinstance(value[0], str | list):
        return value
    if len(value) > 1:
        raise PydanticCustomError("prompts", "{count} prompts, send one in a request", {"count": len(value)})
    return value[0]


def _stops(value: Any) -> Any:
    """Take one text for a list of it; nothing, or an empty text, is none."""
    return [] if value in (None, "") else [value] if isinstance(value, str) else value


def _parts(value: Any) -> Any:
    """Take a text for the only part of a message, and null for none."""
    return [] if value is None else [{"type": "text", "text": value}] if isinstance(value, str) else value


def _tell(unsupported: Mapping[str, tuple[Any, ...]], ignored: frozenset[str], schema: dict[str, Any]) -> None:
    """Tell in a schema which of OpenAI's other fields may be there."""
    for name, harmless in unsupported.items():
        schema["properties"][name] = {"enum": [None, *harmless], "description": "Not supported: these ask for nothing."}
    for name in sorted(ignored):
        schema["properties"][name] = {"description": "Changes nothing."}
    schema["additionalProperties"] = False


Text = Annotated[str, AfterValidator(_encodable)]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"})]
Whole = Annotated[int, BeforeValidator(_whole)]
Seed = Annotated[
    Whole,
    Field(ge=-LARGEST_SEED, le=LARGEST_SEED),
    WithJsonSchema({"type": "integer", "minimum": -_TOLD_SEED, "maximum": _TOLD_SEED}),
]
Token = Annotated[Whole, Field(ge=0)]
_One = Field(min_length=1, max_length=1)
Prompt = Annotated[
    Annotated[Text, Tag("{text}")] | Annotated[list[Token], Field(fail_fast=True), Tag("{tokens}")],
    Discriminator(lambda value: "{text}" if isinstance(value, str) else "{tokens}"),
    BeforeValidator(
        _one_prompt,
        json_schema_input_type=str
        | list[Annotated[int, Field(ge=0)]]
        | Annotated[list[str], _One]
        | Annotated[list[list[Annotated[int, Field(ge=0)]]], _One],
    ),
]
_Stop = Annotated[Text, Field(min_length=1, max_length=256)]
_Stops = Annotated[list[_Stop], Field(max_length=4, fail_fast=True)]
Stop = Annotated[
    _Stops,
    BeforeValidator(_stops, json_schema_input_type=Annotated[str, Field(max_length=256)] | _Stops | None),
]


class StreamOptions(Body):
    """OpenAI's `stream_options`; nothing here needs obfuscation."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = False


class GenerationRequest(Body):
    """What completions and chat have in common.

    Args:
        model: the id of the model served.
        temperature: 0 takes the likeliest token. Default 1.
        top_p: sample from the likeliest tokens of this total probability. Default 1.
        seed: makes sampling repeatable.
        stop: up to four strings that end the text, which they are not part of.
        stream: answer in server-sent events.
        stream_options: `include_usage` asks for the usage in the last event.
        user: whose memory, where one is named; anything otherwise. Default "default".
        memory: the memory to go on from and to keep; None to start anew and keep nothing.
        write: which tokens the memory writes from here on; None for the memory's way.
        trace: tell of every token read how surprising it was and whether it was written.
        max_tokens: to say at most. Default 256.
    """

    model_config = ConfigDict(json_schema_extra=partial(_tell, UNSUPPORTED, IGNORED))
    unsupported = UNSUPPORTED
    ignored = IGNORED

    model: Text
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    seed: Seed | None = None
    stop: Stop = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: Text | None = None
    memory: Name | None = None
    write: Literal["always", "gated", "never"] | None = None
    trace: bool | None = False
    max_tokens: Whole | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_user(self) -> Self:
        if self.memory is not None and self.user and not NAME.fullmatch(self.user):
            raise ApiError(400, f"user: {_NAME_RULE}, where a memory is named", "invalid_name", "user")
        return self


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`.

    Args:
        prompt: a text, or tokens, or a list of one of these.
    """

    prompt: Prompt


class ContentPart(Body):
    """A part of a message; this model reads text only."""

    unsupported = dict.fromkeys(("file", "image_url", "input_audio", "refusal"), ())

    type: Literal["text"]
    text: Text


_Content = Annotated[list[ContentPart], Field(fail_fast=True)]


class Message(Body):
    """A message of a chat, with the fields that clients send back of an answer's message."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **{"annotations": ([],), "tool_calls": ([],)},
        **dict.fromkeys(("audio", "function_call", "name", "refusal", "tool_call_id"), ()),
    }
    model_config = ConfigDict(json_schema_extra=partial(_tell, unsupported, frozenset()))

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[_Content, BeforeValidator(_parts, json_schema_input_type=str | _Content | None)] = []

    @property
    def text(self) -> str:
        """The content as one text."""
        return "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`.

    Args:
        messages: with `memory`, only those that the memory has not read.
        max_completion_tokens: OpenAI's new name for `max_tokens`.
    """

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Whole | None = Field(None, ge=1)


class ForkRequest(Body):
    """Body of `/v1/memories/{user}/{memory}/fork`."""

    to: Name
