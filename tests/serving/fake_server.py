"""A server that speaks the HTTP API of `titans serve` without a model: what it answers can be foretold.

The page's tests run against it. To run them against the real server, replace the fixture `server` in test_page.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles

PAGE = Path(__file__).parents[2] / "src" / "titans" / "serving" / "page"
STATE_BYTES = 40_960
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


@dataclasses.dataclass
class FakeServer:
    """What the fake server remembers, and switches for what should go wrong.

    Args:
        url: where it listens.
        memories: the record of each memory, by (user, memory).
        bodies: the requests for answers that it got.
        template: whether its model has a chat template.
        fail: the next such request is refused with this status, headers and message.
        code: of that refusal.
        key: the API key it asks for; None asks for none.
        answer: what the model says, token by token.
        pause: seconds between the chunks of an answer.
        break_off: whether the next stream ends with an error after its first chunks.
        cancelled: how many streams were ended by the client.
    """

    url: str = ""
    memories: dict[tuple[str, str], dict[str, Any]] = dataclasses.field(default_factory=dict)
    bodies: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    template: bool = True
    fail: tuple[int, dict[str, str], str] | None = None
    code: str | None = None
    key: str | None = None
    answer: list[str] = dataclasses.field(default_factory=lambda: ["The ", "code ", "is ", "7", "1", "4", "."])
    pause: float = 0.0
    break_off: bool = False
    cancelled: int = 0

    def remember(self, user: str, memory: str, tokens: int) -> dict[str, Any]:
        """Count tokens into a memory, which begins where it did not exist."""
        now = f"2026-01-01T00:00:{time.monotonic():020.6f}"
        record = self.memories.setdefault(
            (user, memory),
            {
                "object": "memory",
                "id": f"{user}:{memory}",
                "user": user,
                "memory": memory,
                "version": 0,
                "tokens": 0,
                "bytes": STATE_BYTES,
                "created": now,
                "foreign": False,
                "damaged": False,
            },
        )
        record |= {"tokens": record["tokens"] + tokens, "version": record["version"] + 1, "updated": now}
        return record


def traced(index: int, text: str, generated: bool) -> dict[str, Any]:
    """A token whose numbers follow from its place: every fourth is written, every ninth dropped, one half written."""
    surprise = 1 + ((index * 37 + len(text) * 11) % 101) / 25
    written = 1.0 if surprise > 3.6 else 0.5 if surprise > 3.4 else 0.0
    dropped = 1.0 if index % 19 == 18 else 0.0
    return {
        "text": text,
        "surprise": surprise,
        "written": 0.0 if dropped else written,
        "dropped": dropped,
        "forgotten": 0.0 if dropped else 0.01 * written,
        "generated": generated,
    }


def words(text: str) -> list[str]:
    """Cut a text into words, each with the blank after it."""
    return [part + " " for part in text.split(" ")[:-1]] + [text.split(" ")[-1]]


def error(status: int, message: str, headers: dict[str, str] | None = None, code: str | None = None) -> JSONResponse:
    """An error in OpenAI's shape."""
    return JSONResponse({"error": {"message": message, "type": "error", "param": None, "code": code}}, status, headers)


def build_app(fake: FakeServer) -> FastAPI:
    """The routes, over what `fake` remembers."""
    app = FastAPI()

    @app.middleware("http")
    async def door(request: Request, call_next: Any) -> Response:
        wanted = None if fake.key is None or not request.url.path.startswith("/v1") else f"Bearer {fake.key}"
        if wanted and request.headers.get("authorization") != wanted:
            return error(401, "unknown API key")
        response: Response = await call_next(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "demo-mac", "object": "model", "chat_template": fake.template}]}

    @app.post("/v1/chat/completions")
    @app.post("/v1/completions")
    async def complete(request: Request) -> Response:
        body = await request.json()
        fake.bodies.append(body)
        if fake.fail is not None:
            status, headers, message = fake.fail
            fake.fail = None
            return error(status, message, headers, fake.code)
        return StreamingResponse(stream(fake, body), media_type="text/event-stream")

    memory_routes(app, fake)
    app.get("/")(lambda: FileResponse(PAGE / "index.html"))
    app.mount("/static", StaticFiles(directory=PAGE))
    return app


async def stream(fake: FakeServer, body: dict[str, Any]) -> Any:
    """The chunks of an answer: the prompt's trace, then a chunk for each token."""

    def chunk(content: str = "", finish: str | None = None, **more: Any) -> str:
        said = {"text": content} if plain else {"delta": {"content": content} if content else {}}
        choice = {"index": 0, **said, "finish_reason": finish}
        return f"data: {json.dumps({'object': 'chunk', 'choices': [choice]} | more)}\n\n"

    plain = "prompt" in body
    prompt = words(body["prompt"] if plain else body["messages"][-1]["content"])
    trace = [traced(i, text, False) for i, text in enumerate(prompt)]
    ended = False
    try:
        yield chunk(trace=trace)
        for i, text in enumerate(fake.answer):
            if fake.break_off and i == 2:
                fake.break_off, ended = False, True
                yield f"data: {json.dumps({'error': {'message': 'the model broke down'}})}\n\n"
                return
            await asyncio.sleep(fake.pause)
            trace.append(traced(len(prompt) + i, text, True))
            yield chunk(text, trace=trace[-1:])
        record = fake.remember(body["user"], body["memory"], len(trace))
        written = sum(token["written"] for token in trace)
        dropped = sum(token["dropped"] for token in trace)
        counts = {"written": int(2 * written), "dropped": int(2 * dropped), "layers": 2}
        counts["skipped"] = 2 * len(trace) - counts["written"] - counts["dropped"]
        norm = 12 + 3 * (1 - 0.8 ** record["version"])
        memory = {"memory": body["memory"], "user": body["user"], "norm": norm} | counts
        memory |= {name: record[name] for name in ("tokens", "version", "bytes")}
        yield chunk(finish="stop", memory=memory)
        yield "data: [DONE]\n\n"
        ended = True
    finally:
        fake.cancelled += not ended


def memory_routes(app: FastAPI, fake: FakeServer) -> None:
    """The routes of the store."""

    @app.get("/v1/memories")
    async def memories(user: str, limit: int = 100, after: str | None = None) -> dict[str, Any]:
        names = sorted(memory for owner, memory in fake.memories if owner == user and (not after or memory > after))
        data = [fake.memories[user, name] for name in names[:limit]]
        return {"object": "list", "data": data, "has_more": len(names) > limit}

    @app.get("/v1/memories/{user}/{memory}")
    async def described(user: str, memory: str) -> Any:
        return fake.memories.get((user, memory)) or error(404, "no such memory")

    @app.delete("/v1/memories/{user}/{memory}")
    async def delete(user: str, memory: str) -> dict[str, Any]:
        del fake.memories[user, memory]
        return {"deleted": True}

    @app.post("/v1/memories/{user}/{memory}/fork")
    async def fork(user: str, memory: str, request: Request) -> Any:
        to = (await request.json())["to"]
        if (user, to) in fake.memories:
            return error(409, f"the memory {to} exists already")
        return fake.remember(user, to, fake.memories[user, memory]["tokens"])

    @app.post("/v1/memories/{user}/{memory}/reset")
    async def reset(user: str, memory: str) -> dict[str, Any]:
        fake.memories[user, memory] |= {"tokens": 0, "damaged": False, "foreign": False}
        return fake.memories[user, memory]

    @app.get("/v1/memories/{user}/{memory}/export")
    async def export(user: str, memory: str) -> Response:
        tokens = fake.memories[user, memory]["tokens"]
        return Response(str(tokens).encode(), media_type="application/octet-stream")

    @app.put("/v1/memories/{user}/{memory}/import")
    async def load(user: str, memory: str, request: Request) -> dict[str, Any]:
        fake.memories.pop((user, memory), None)
        return fake.remember(user, memory, int(await request.body()))


@contextlib.contextmanager
def serving(fake: FakeServer) -> Iterator[FakeServer]:
    """Run the fake server in a thread on a free port."""
    server = uvicorn.Server(uvicorn.Config(build_app(fake), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    fake.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.should_exit = True
        thread.join()
