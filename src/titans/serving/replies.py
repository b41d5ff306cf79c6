"""The answers of the API, in OpenAI's shapes, with what the memory did beside them."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from typing import Any, NamedTuple

from titans.persistence import MemoryInfo
from titans.serving.errors import ApiError
from titans.serving.jobs import Finished, MemoryReport
from titans.serving.rows import TracedToken

SEPARATOR = ":"  # between user and memory in a memory's name


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
    user, _, name = (None, None, None) if memory.info is None else memory.info.name.partition(SEPARATOR)
    return {
        "user": user,
        "memory": name,
        "version": None if memory.info is None else memory.info.version,
        "tokens": memory.tokens,
        "bytes": memory.bytes,
        "norm": memory.norm,
        **dataclasses.asdict(memory.counts),
    }


def describe(info: MemoryInfo) -> dict[str, Any]:
    """Describe a kept memory."""
    user, _, name = info.name.partition(SEPARATOR)
    return {
        "id": info.name,
        "object": "memory",
        "user": user,
        "memory": name,
        "version": info.version,
        "tokens": info.tokens,
        "bytes": info.bytes,
        "created": info.created or None,
        "updated": info.updated or None,
        "foreign": info.foreign,
        "damaged": info.damaged,
    }
