"""The requests of the API. Fields that OpenAI's clients may send and that mean nothing here are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

LARGEST_SEED = (1 << 63) - 1


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("the text holds half a surrogate pair, which is no UTF-8") from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9._@+-]+$")]
"""A user or a memory; without the colon, which joins the two."""
Token = Annotated[int, Field(ge=0)]


def _as_list(stop: Any) -> Any:
    return [] if stop is None else [stop] if isinstance(stop, str) else stop


Stop = Annotated[
    list[Annotated[Text, StringConstraints(min_length=1, max_length=256)]],
    BeforeValidator(_as_list, json_schema_input_type=str | list[str] | None),
    Field(max_length=4),
]


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


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
        n: only 1.
        user: whose memory. Default "default".
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
    n: Literal[1] | None = None
    user: Name | None = None
    memory: Name | None = None
    write: Literal["always", "gated", "never"] | None = None
    trace: bool = False


class CompletionRequest(GenerationRequest):
    """Body of `/v1/completions`.

    Args:
        prompt: a text, or tokens.
        max_tokens: to say at most. Default 256.
        echo: only False.
        best_of: only 1.
        suffix: only None.
        logprobs: only None.
    """

    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=1)] | list[Token]
    max_tokens: int | None = Field(None, ge=1)
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None
    logprobs: Literal[False] | None = None


class ContentPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[ContentPart]

    @property
    def text(self) -> str:
        """The content as one text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """Body of `/v1/chat/completions`.

    Args:
        messages: with `memory`, only those that the memory has not read.
        max_tokens: to say at most. Default 256.
        max_completion_tokens: OpenAI's new name for it.
        logprobs: only False.
        tools: only none.
    """

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: Literal[False] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None


class ForkRequest(BaseModel):
    """Body of `/v1/memories/{user}/{memory}/fork`."""

    to: Name
