"""The answers of the API as its schema tells them; `replies` and `errors` make them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from titans.serving.rows import TracedToken


class Answer(BaseModel):
    """An object that holds these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Answer):
    """What went wrong: a sentence, a word for programs, and the field that is wrong."""

    message: str
    type: Literal["authentication_error", "rate_limit_error", "invalid_request_error", "server_error"]
    param: str | None
    code: str | None


class Error(Answer):
    """An error, as OpenAI's API tells it."""

    error: ErrorDetail


class Usage(Answer):
    """Tokens read and generated."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class MemoryUse(Answer):
    """What a request did to the memory; user, memory and version are null where nothing was kept."""

    user: str | None
    memory: str | None
    version: int | None
    tokens: int
    bytes: int
    norm: float
    written: int
    skipped: int
    dropped: int
    layers: int


class Choice(Answer):
    """What was said, and why it ends."""

    index: int
    finish_reason: Literal["stop", "length", "cancelled"]
    logprobs: None


class TextChoice(Choice):
    """Text that goes on from the prompt."""

    text: str


class Said(Answer):
    """A message of the model's."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Choice):
    """A message that answers the chat."""

    message: Said


class Generated(Answer):
    """What both kinds of answers have; `trace` is there where it was asked for."""

    id: str
    created: int
    model: str
    usage: Usage
    memory: MemoryUse
    trace: list[TracedToken] = []


class Completion(Generated):
    """The answer of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class ChatCompletion(Generated):
    """The answer of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class Model(Answer):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    chat_template: Annotated[bool, Field(description="Whether the model was trained on chats of a form of its own.")]


class Models(Answer):
    """The models: one."""

    object: Literal["list"]
    data: list[Model]


class Memory(Answer):
    """A kept memory; `foreign`: it belongs to another model; `damaged`: it cannot be read, and its times are null."""

    id: str
    object: Literal["memory"]
    user: str
    memory: str
    version: int
    tokens: int
    bytes: int
    created: str | None
    updated: str | None
    foreign: bool
    damaged: bool


class Memories(Answer):
    """A page of a user's memories."""

    object: Literal["list"]
    data: list[Memory]
    has_more: bool


class Deleted(Answer):
    """A memory that is gone."""

    id: str
    object: Literal["memory.deleted"]
    deleted: Literal[True]


class Ready(Answer):
    """Requests are taken, and their memories can be saved."""

    status: Literal["ok"]


class Health(Answer):
    """Requests are taken; what the store held at the start, null until it is counted."""

    status: Literal["ok"]
    memories_at_start: dict[str, Any] | None
