"""The requests of the API. Fields that OpenAI's clients may send and that mean nothing here are ignored."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

LARGEST_SEED = (1 << 63) - 1


NAME = re.compile(r"(?!\.+$)[A-Za-z0-9._@+-]{1,63}")  # of a user or a memory; without the colon that joins them
UNSUPPORTED: dict[str, tuple[Any, ...]] = {  # OpenAI's fields, and the values that ask for nothing
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (),
    "tools": ([],),
    "functions": ([],),
    "logit_bias": ({},),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "response_format": ({"type": "text"},),
}


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text holds half a surrogate pair, which is no UTF-8") from error
    return text


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError("the name is not 1 to 63 letters, digits or ._@+-, of which one is no point")
    return text


def _as_list(stop: Any) -> Any:
    return [] if stop in (None, "") else [stop] if isinstance(stop, str) else stop


Text = Annotated[str, AfterValidator(_encodable)]
Name = Annotated[str, AfterValidator(_name)]
Token = Annotated[int, Field(ge=0)]
Stop = Annotated[
    list[Annotated[Text, StringConstraints(min_length=1, max_length=256)]],
    BeforeValidator(_as_list, json_schema_input_type=str | list[str] | None),
    Field(max_length=4),
]


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = False


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
        write: which tokens the memory writes from here on; None for the session's way.
        trace: tell of every token read how surprising it was and whether it was written.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: Text
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-LARGEST_SEED, le=LARGEST_SEED)
    stop: Stop = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: Text | None = None
    memory: Name | None = None
    write: Literal["always", "gated", "never"] | None = None
    trace: bool | None = False

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        for name, harmless in UNSUPPORTED.items() if isinstance(body, dict) else ():
            value = body.get(name)
            if value is not None and not any(value == x and type(value) is type(x) for x in harmless):
                raise ValueError(f"{name} is not supported: leave it out")
        return body

    @model_validator(mode="after")
    def _check_user(self) -> Self:
        if self.memory is not None and self.user:
            _name(self.user)
        return self


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`.

    Args:
        prompt: a text, or tokens, or a list of one of these.
        max_tokens: to say at most. Default 256.
    """

    prompt: Text | list[Token] | Annotated[list[Text] | list[list[Token]], Field(min_length=1, max_length=1)]
    max_tokens: int | None = Field(None, ge=1)


class ContentPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`.

    Args:
        messages: with `memory`, only those that the memory has not read.
        max_tokens: to say at most. Default 256.
        max_completion_tokens: OpenAI's new name for it.
    """

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)


class ForkRequest(BaseModel):
    """Body of `/v1/memories/{user}/{memory}/fork`."""

    to: Name
