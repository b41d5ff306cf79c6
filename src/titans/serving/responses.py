"""The answers of the API, in OpenAI's shapes, with what the memory did beside them: their schema and their making."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from titans.persistence import MemoryInfo
from titans.serving.errors import ApiError
from titans.serving.protocol import Finished, MemoryReport, TracedToken

SEPARATOR = ":"  # between user and memory in a memory's name


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


class Shape(NamedTuple):
    """How one of the two endpoints names things.

    Args:
        prefix: of the id.
        whole: object of an answer in one piece.
        part: object of an answer's part.
        chat: whether text comes in messages.
    """

    prefix: str
    whole: str
    part: str
    chat: bool


COMPLETION = Shape("cmpl", "text_completion", "text_completion", False)
CHAT = Shape("chatcmpl", "chat.completion", "chat.completion.chunk", True)


class Reply:
    """Builds the answer to one request.

    Args:
        shape: of the endpoint.
        model: the model's id.
    """

    def __init__(self, shape: Shape, model: str) -> None:
        self.shape = shape
        self.head = {"id": f"{shape.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, text: str, trace: list[TracedToken] | None, end: Finished) -> dict[str, Any]:
        """Build an answer in one piece; `trace` is None where none was asked for."""
        said = {"message": {"role": "assistant", "content": text}} if self.shape.chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": end.reason, "logprobs": None}
        body = {**self.head, "object": self.shape.whole, "choices": [choice], "usage": usage(end)}
        return body | {"memory": report(end.memory)} | _traced(trace)

    def first(self) -> str:
        """Build the event that comes before any text."""
        return self._event({"role": "assistant", "content": ""} if self.shape.chat else "", None, {})

    def part(self, text: str, trace: list[TracedToken]) -> str:
        """Build the event of a piece of text."""
        return self._event({"content": text} if self.shape.chat else text, None, _traced(trace or None))

    def last(self, end: Finished) -> str:
        """Build the event that says why the text ends."""
        return self._event({} if self.shape.chat else "", end.reason, {"memory": report(end.memory)})

    def usage(self, end: Finished) -> str:
        """Build the event with the usage, which has no choices."""
        return _sse({**self.head, "object": self.shape.part, "choices": [], "usage": usage(end)})

    def error(self, error: ApiError) -> str:
        """Build the event of an error that came after the answer began."""
        return _sse(error.body())

    def _event(self, said: Any, reason: str | None, more: dict[str, Any]) -> str:
        choice = {"index": 0, "delta" if self.shape.chat else "text": said, "finish_reason": reason, "logprobs": None}
        return _sse({**self.head, "object": self.shape.part, "choices": [choice], **more})


def _sse(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


def _traced(trace: list[TracedToken] | None) -> dict[str, Any]:
    return {} if trace is None else {"trace": [dataclasses.asdict(token) for token in trace]}


def usage(end: Finished) -> dict[str, int]:
    """Count tokens as OpenAI does."""
    return {
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "total_tokens": end.prompt_tokens + end.completion_tokens,
    }


def report(memory: MemoryReport) -> dict[str, Any]:
    """Tell what a request did to the memory."""
    info = memory.info
    user, _, name = (None, None, None) if info is None else info.name.partition(SEPARATOR)
    kept = {"user": user, "memory": name, "version": None if info is None else info.version}
    return kept | {n: getattr(memory, n) for n in ("tokens", "bytes", "norm")} | dataclasses.asdict(memory.counts)


def describe(info: MemoryInfo) -> dict[str, Any]:
    """Describe a kept memory."""
    user, _, name = info.name.partition(SEPARATOR)
    known = {n: getattr(info, n) for n in ("version", "tokens", "bytes", "foreign", "damaged")}
    times = {"created": info.created or None, "updated": info.updated or None}
    return {"id": info.name, "object": "memory", "user": user, "memory": name} | known | times
