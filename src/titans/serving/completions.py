"""The endpoints that generate text."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from itertools import chain, islice
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Header, Request
from pydantic import WithJsonSchema
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from titans.data.tokenizers import encode
from titans.serving.errors import ApiError, as_api_error
from titans.serving.idempotency import Events, Expected, Key, Recording
from titans.serving.openapi import KEPT, documented
from titans.serving.protocol import Delta, Finished, SamplingParams, ServiceRequest, TracedToken
from titans.serving.requests import NAME, ChatRequest, CompletionRequest, GenerationRequest, Message
from titans.serving.responses import CHAT, COMPLETION, SEPARATOR, ChatCompletion, Completion, Reply, Shape

DEFAULT_MAX_TOKENS = 256
DEFAULT_USER = "default"
MemoryName = Annotated[
    str | None,
    WithJsonSchema({"type": "string"}),
    Header(alias="X-Titans-Memory", description="As the field `memory`."),
]
_STREAM = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_STREAM_SCHEMA = {"text/event-stream": _EVENT}

router = APIRouter(prefix="/v1")


class Prompt(NamedTuple):
    """What is to be read.

    Args:
        tokens: the prompt.
        joint: what comes before it where a memory has read something already.
    """

    tokens: list[int]
    joint: list[int]


class Asked(NamedTuple):
    """A request and its headers.

    Args:
        body: the request.
        shape: of its answer.
        max_tokens: to say at most; None for the default.
        memory: the name of the memory; None or empty for none.
        key: the `Idempotency-Key`; None or empty for none.
        expected: the version that the memory must be at; None for any.
    """

    body: GenerationRequest
    shape: Shape
    max_tokens: int | None
    memory: str | None
    key: str | None
    expected: int | None


@router.post("/completions", response_class=Response, responses=documented(KEPT, Completion, _STREAM_SCHEMA))
async def completions(
    body: CompletionRequest, request: Request, memory: MemoryName = None, key: Key = None, expected: Expected = None
) -> Response:
    """Go on from a prompt."""
    asked = Asked(body, COMPLETION, body.max_tokens, body.memory or memory, key, expected)
    return await _answer(request, asked, lambda: _tokens(request, body.prompt))


@router.post("/chat/completions", response_class=Response, responses=documented(KEPT, ChatCompletion, _STREAM_SCHEMA))
async def chat_completions(
    body: ChatRequest, request: Request, memory: MemoryName = None, key: Key = None, expected: Expected = None
) -> Response:
    """Answer the last message of a chat."""
    limit = body.max_completion_tokens or body.max_tokens
    asked = Asked(body, CHAT, limit, body.memory or memory, key, expected)
    return await _answer(request, asked, lambda: _chat_tokens(request, body.messages))


def _tokens(request: Request, prompt: str | list[int]) -> Prompt:
    if isinstance(prompt, str):
        return Prompt(_encode(request, prompt), [])
    largest = request.app.state.service.engine.model.config.vocab_size - 1
    if prompt and max(prompt) > largest:
        raise ApiError(400, f"the prompt holds tokens above {largest}, the model's largest", param="prompt")
    return Prompt(prompt, [])


def _encode(request: Request, text: str) -> list[int]:
    """Return a text's tokens, as many as show that they are too many."""
    tokens = chain.from_iterable(encode(request.app.state.service.engine.tokenizer, [text]))
    return list(islice(tokens, request.app.state.limits.prompt_tokens + 1))


def _chat_tokens(request: Request, messages: list[Message]) -> Prompt:
    """Write a chat as the model's template does or, where it has none, as a transcript."""
    tokenizer = request.app.state.service.engine.tokenizer
    if tokenizer.chat_template is None:
        lines = [f"{message.role}: {message.text}\n" for message in messages]
        return Prompt(_encode(request, "".join(lines) + "assistant:"), _encode(request, "\n"))
    plain = [{"role": message.role, "content": message.text} for message in messages]
    try:
        return Prompt(tokenizer.apply_chat_template(plain, add_generation_prompt=True, return_dict=False), [])
    except Exception as error:  # templates are programs of the model's author, and raise what they like
        raise ApiError(400, f"the model's chat template refuses these messages: {error}", param="messages") from error


async def _answer(request: Request, asked: Asked, prompt: Callable[[], Prompt]) -> Response:
    """Answer a request; one with an `Idempotency-Key` that came before, as it was answered then."""
    body, model = asked.body, request.app.state.model_id
    if body.model != model:
        raise ApiError(404, f'there is no model "{body.model}": this server has "{model}"', "model_not_found", "model")
    cancelled = asyncio.Event()
    if asked.key:
        recording = _recorded(request, asked, prompt)
        reply, events = recording.reply, recording.replay()
        watcher = None  # a client that leaves may come again for the answer
    else:
        reply, events = Reply(asked.shape, model), _events(request, asked, prompt, cancelled)
        watcher = asyncio.create_task(_departure(request, cancelled))
    try:
        if not body.stream:
            return await _whole(reply, events, bool(body.trace))
        first = await anext(events)  # what is refused is refused before the answer begins
    finally:
        if watcher is not None:
            watcher.cancel()  # from here on, the response itself notices
    include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    stream = _stream(reply, first, events, include_usage)
    return StreamingResponse(stream, media_type="text/event-stream", headers=_STREAM)


def _recorded(request: Request, asked: Asked, prompt: Callable[[], Prompt]) -> Recording:
    """Find the recording of a request, or start one."""
    tenant, retries = request.state.tenant, request.app.state.retries
    mark = hashlib.sha256(f"{asked.shape.prefix} {asked.memory} {asked.body!r}".encode()).hexdigest()
    recording: Recording | None = retries.find(tenant, asked.key, mark)
    if recording is None:
        events = _events(request, asked, prompt, asyncio.Event())
        recording = retries.record(tenant, asked.key, mark, Reply(asked.shape, asked.body.model), events)
    return recording


async def _events(request: Request, asked: Asked, prompt: Callable[[], Prompt], cancelled: asyncio.Event) -> Events:
    """Read the prompt and run the request."""
    service, tenant, longest = request.app.state.service, request.state.tenant, request.app.state.limits.prompt_tokens
    service.admit(tenant)  # before the work of tokenizing
    read = await run_in_threadpool(prompt)
    if len(read.tokens) > longest:
        message = f"the prompt has more than {longest:,} tokens: send it in several requests"
        raise ApiError(400, message, "context_length_exceeded", "prompt")
    async with contextlib.aclosing(service.events(tenant, _service_request(request, asked, read), cancelled)) as events:
        async for event in events:
            yield event


def _service_request(request: Request, asked: Asked, prompt: Prompt) -> ServiceRequest:
    body, memory = asked.body, asked.memory
    if asked.expected is not None and not memory:
        raise ApiError(400, "If-Match names a memory's version, and the request names no memory", param="If-Match")
    return ServiceRequest(
        prompt=prompt.tokens,
        joint=prompt.joint,
        params=SamplingParams(
            max_new_tokens=min(asked.max_tokens or DEFAULT_MAX_TOKENS, request.app.state.limits.new_tokens),
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=body.seed,
            stop=body.stop,
            trace=bool(body.trace),
        ),
        memory=memory_name(body.user or DEFAULT_USER, memory) if memory else None,
        expected=asked.expected,
        write=body.write,
    )


def memory_name(user: str, memory: str) -> str:
    """Name a user's memory in the store.

    Raises:
        ApiError: one of them is no name.
    """
    for name in (user, memory):
        if not NAME.fullmatch(name):
            raise ApiError(
                400, f"{name!r} is no name of a user or a memory: use letters, digits and ._@+-", "invalid_name"
            )
    return f"{user}{SEPARATOR}{memory}"


async def _departure(request: Request, cancelled: asyncio.Event) -> None:
    """Notice that the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    cancelled.set()


async def _whole(reply: Reply, events: Events, traced: bool) -> Response:
    """Answer in one piece."""
    text = ""
    trace: list[TracedToken] = []
    async for event in events:
        if isinstance(event, Finished):
            return JSONResponse(reply.whole(text, trace if traced else None, event))
        text += event.text
        trace += event.trace
    raise AssertionError("events end with Finished")


async def _stream(reply: Reply, first: Delta | Finished, events: Events, include_usage: bool) -> AsyncIterator[str]:
    """Answer in server-sent events; an error after the first is an event, too."""
    event: Delta | Finished = first
    yield reply.first()
    try:
        while isinstance(event, Delta):
            yield reply.part(event.text, event.trace)
            event = await anext(events)
        yield reply.last(event)
        if include_usage:
            yield reply.usage(event)
    except Exception as error:
        yield reply.error(as_api_error(error))
    finally:
        await events.aclose()
    yield "data: [DONE]\n\n"
