"""The requests of the API; `fields` says what is taken of OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from titans.serving import fields
from titans.serving.errors import ApiError

LARGEST_SEED = (1 << 63) - 1
_TOLD_SEED = (1 << 63) - 1024  # the largest below it that is a double, too, as numbers are in a schema

NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._@+-]{1,63}")  # of a user or a memory; without the colon that joins them
_NAME_RULE = "the name is not 1 to 63 letters, digits or ._@+-, of which one is no point"


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text holds half a surrogate pair, which is no UTF-8") from error
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(_NAME_RULE)
    return text


def _tell(unsupported: Mapping[str, tuple[Any, ...]], ignored: Collection[str], schema: dict[str, Any]) -> None:
    """Tell in a schema which of OpenAI's other fields may be there."""
    for name, harmless in unsupported.items():
        schema["properties"][name] = {"enum": [None, *harmless], "description": "Not supported: these ask for nothing."}
    for name in sorted(ignored):
        schema["properties"][name] = {"description": "Changes nothing."}
    schema["additionalProperties"] = False


Text = Annotated[str, AfterValidator(_encodable)]
Name = Annotated[str, AfterValidator(_name), WithJsonSchema({"type": "string", "pattern": f"^{NAME.pattern}$"})]
Whole = Annotated[int, BeforeValidator(fields.whole)]
Seed = Annotated[
    Whole,
    Field(ge=-LARGEST_SEED, le=LARGEST_SEED),
    WithJsonSchema({"type": "integer", "minimum": -_TOLD_SEED, "maximum": _TOLD_SEED}),
]
Token = Annotated[int, Field(ge=0)]
One = Field(min_length=1, max_length=1)
OneOf = Annotated[list[str], One] | Annotated[list[list[Token]], One]
Prompt = Annotated[str | list[int], PlainValidator(fields.prompt, json_schema_input_type=str | list[Token] | OneOf)]
OneStop = Annotated[str, Field(max_length=fields.LONGEST_STOP)]
Stops = Annotated[list[Annotated[OneStop, Field(min_length=1)]], Field(max_length=fields.MOST_STOPS)]
Stop = Annotated[list[str], PlainValidator(fields.stops, json_schema_input_type=OneStop | Stops | None)]


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`; nothing here needs obfuscation."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = False
    include_obfuscation: bool | None = False

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, options: Any) -> Any:
        fields.check_fields(options, cls.model_fields, where="stream_options")
        return options


class GenerationRequest(BaseModel):
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
    """

    model_config = ConfigDict(
        strict=True,
        allow_inf_nan=False,
        json_schema_extra=partial(_tell, fields.UNSUPPORTED, fields.IGNORED),
    )

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

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, body: Any) -> Any:
        fields.check_fields(body, cls.model_fields, unsupported=fields.UNSUPPORTED, ignored=fields.IGNORED)
        return body

    @model_validator(mode="after")
    def _check_user(self) -> Self:
        if self.memory is not None and self.user and not NAME.fullmatch(self.user):
            raise ApiError(400, f"user: {_NAME_RULE}, where a memory is named", "invalid_name", "user")
        return self


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`.

    Args:
        prompt: a text, or tokens, or a list of one of these.
        max_tokens: to say at most. Default 256.
    """

    prompt: Prompt
    max_tokens: Whole | None = Field(None, ge=1)


class ContentPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class MessageBody(BaseModel):
    """A message of a chat, as it is sent."""

    model_config = ConfigDict(json_schema_extra=partial(_tell, fields.OF_MESSAGES, ()))

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None


Bodies = Annotated[list[MessageBody], Field(min_length=1)]
Messages = Annotated[list[fields.Message], PlainValidator(fields.messages, json_schema_input_type=Bodies)]


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`.

    Args:
        messages: with `memory`, only those that the memory has not read.
        max_tokens: to say at most. Default 256.
        max_completion_tokens: OpenAI's new name for it.
    """

    messages: Messages
    max_tokens: Whole | None = Field(None, ge=1)
    max_completion_tokens: Whole | None = Field(None, ge=1)


class ForkRequest(BaseModel):
    """Body of `/v1/memories/{user}/{memory}/fork`."""

    model_config = ConfigDict(extra="forbid")

    to: Name

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, body: Any) -> Any:
        fields.check_fields(body, cls.model_fields)
        return body
