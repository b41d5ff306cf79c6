"""The endpoints that generate text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from titans.data.tokenizers import encode
from titans.serving.errors import ApiError, as_api_error
from titans.serving.replies import CHAT, COMPLETION, SEPARATOR, Reply, Shape
from titans.serving.rows import Piece, TracedToken
from titans.serving.schemas import ChatRequest, CompletionRequest, GenerationRequest, Message
from titans.serving.service import Finished, Job, Service

DEFAULT_MAX_TOKENS = 256
DEFAULT_USER = "default"
MEMORY_HEADER = "X-Titans-Memory"
_STREAM = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

router = APIRouter(prefix="/v1")


@router.post("/completions")
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Go on from a prompt."""
    return await _answer(request, body, COMPLETION, await _tokens(request, body.prompt), body.max_tokens)


@router.post("/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """Answer the last message of a chat."""
    limit = body.max_completion_tokens or body.max_tokens
    return await _answer(request, body, CHAT, await run_in_threadpool(_chat_tokens, request, body.messages), limit)


async def _tokens(request: Request, prompt: str | list[Any]) -> list[int]:
    """Return the tokens of a prompt: a text, a list of one, or tokens already."""
    if isinstance(prompt, str) or any(isinstance(text, str) for text in prompt):
        return await run_in_threadpool(_encode, request, prompt if isinstance(prompt, str) else prompt[0])
    largest = request.app.state.service.engine.model.config.vocab_size - 1
    if any(token > largest for token in prompt):
        raise ApiError(400, f"the prompt holds tokens above {largest}, the model's largest", param="prompt")
    return list(prompt)


def _encode(request: Request, text: str) -> list[int]:
    return [token for block in encode(request.app.state.service.engine.tokenizer, [text]) for token in block]


def _chat_tokens(request: Request, messages: list[Message]) -> list[int]:
    """Write a chat as the model's template does or, where it has none, as a transcript."""
    tokenizer = request.app.state.service.engine.tokenizer
    if tokenizer.chat_template is None:
        lines = [f"{message.role}: {message.text}\n" for message in messages]
        return _encode(request, "".join(lines) + "assistant:")
    plain = [{"role": message.role, "content": message.text} for message in messages]
    try:
        tokens: list[int] = tokenizer.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
    except Exception as error:  # templates are programs of the model's author, and raise what they like
        raise ApiError(400, f"the model's chat template refuses these messages: {error}", param="messages") from error
    return tokens


async def _answer(
    request: Request, body: GenerationRequest, shape: Shape, prompt: list[int], max_tokens: int | None
) -> Response:
    service: Service = request.app.state.service
    model, longest = request.app.state.model_id, request.app.state.limits.prompt_tokens
    if body.model != model:
        raise ApiError(404, f'there is no model "{body.model}": this server has "{model}"', "model_not_found", "model")
    if len(prompt) > longest:
        message = f"the prompt has {len(prompt):,} tokens, more than {longest:,}: send it in several requests"
        raise ApiError(400, message, "context_length_exceeded", "prompt")
    events = service.events(request.state.tenant, _job(request, body, prompt, max_tokens))
    reply = Reply(shape, model)
    if not body.stream:
        return await _whole(request, reply, events, body.trace)
    first = await anext(events)  # what is refused is refused before the answer begins
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    stream = _stream(reply, first, events, include_usage)
    return StreamingResponse(stream, media_type="text/event-stream", headers=_STREAM)


def _job(request: Request, body: GenerationRequest, prompt: list[int], max_tokens: int | None) -> Job:
    memory = body.memory or request.headers.get(MEMORY_HEADER)
    return Job(
        prompt=prompt,
        max_new_tokens=min(max_tokens or DEFAULT_MAX_TOKENS, request.app.state.limits.new_tokens),
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=body.stop,
        trace=body.trace,
        session=None if memory is None else session_name(body.user or DEFAULT_USER, memory),
        write=body.write,
    )


def session_name(user: str, memory: str) -> str:
    """Name the session of a user's memory in the store.

    Raises:
        ApiError: one of them holds the separator, so that the name could be another's.
    """
    if SEPARATOR in user + memory:
        raise ApiError(400, f'the names of users and memories must not hold "{SEPARATOR}"', "invalid_name", "memory")
    return f"{user}{SEPARATOR}{memory}"


async def _whole(request: Request, reply: Reply, events: AsyncIterator[Piece | Finished], traced: bool) -> Response:
    """Answer in one piece; a client that has left is noticed between pieces of text."""
    text = ""
    trace: list[TracedToken] = []
    async for event in events:
        if isinstance(event, Finished):
            return JSONResponse(reply.whole(text, trace if traced else None, event))
        text += event.text
        trace += event.trace
        if await request.is_disconnected():
            break
    await events.aclose()  # type: ignore[attr-defined]  # an asynchronous generator
    raise ApiError(499, "the client has left", "cancelled")


async def _stream(
    reply: Reply, first: Piece | Finished, events: AsyncIterator[Piece | Finished], include_usage: bool
) -> AsyncIterator[str]:
    """Answer in server-sent events; an error after the first is an event, too."""
    event: Piece | Finished = first
    begun = False
    try:
        while isinstance(event, Piece):
            yield reply.part(event.text, event.trace, not begun)
            begun = True
            event = await anext(events)
        yield reply.last(event)
        if include_usage:
            yield reply.usage(event)
    except Exception as error:
        yield reply.error(as_api_error(error))
    finally:
        await events.aclose()  # type: ignore[attr-defined]  # an asynchronous generator
    yield "data: [DONE]\n\n"
