"""The bodies of requests: how large they may be, how slow, and of how many values; how many state files at once."""

from __future__ import annotations

import asyncio
import contextlib
import json

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from titans.serving.errors import ApiError
from titans.serving.limits import KeyedLocks, TenantLimit

SECONDS = 60  # in which a body must have come
_SMALL = 1 << 16  # bytes that are looked through at once, without a thread
_HEADER_VALUES = 1 << 18  # of a state file: more than those of a thousand layers
_SIGNS = (b",", b"[", b"{")  # each begins at most one value that is neither the whole text nor a name's


class BodyLimits:
    """Takes in each body whole, or refuses it, before anything is made of it.

    What a body costs must be bounded by its bytes, and a few bytes can ask for a lot: a parser makes an object and a
    schema an error of every two of them. So the values of a JSON text are counted in the plain bytes first.

    Args:
        app: what comes after; `tenant` is in the request's state where a body may be sent.
        limit: bytes.
        imports: bytes of a state file.
        values: JSON values of a body.
        most: bodies of each tenant that are being read.
        seconds: in which a body must have come, and that a state file waits for others. Default 60.
    """

    def __init__(
        self, app: ASGIApp, *, limit: int, imports: int, values: int, most: int, seconds: float = SECONDS
    ) -> None:
        self.app, self.limit, self.imports, self.values = app, limit, imports, values
        self.tenant_limit, self.seconds = TenantLimit(most), seconds
        self.counting = asyncio.Semaphore(2)  # large bodies looked through at the same time
        self.moving, self.files = KeyedLocks(), asyncio.Semaphore(4)  # state files in memory: one of each tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request whose body may be used."""
        tenant = scope.get("state", {}).get("tenant")
        if scope["type"] != "http" or tenant is None:  # nothing that needs no key reads a body
            await self.app(scope, receive, send)
            return
        async with contextlib.AsyncExitStack() as held:  # what a request takes, it has until it is answered
            try:
                body = await self._body(scope, receive, tenant, held)
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
            if body is not None:
                await self.app(scope, _again(body, receive), send)

    async def _body(self, scope: Scope, receive: Receive, tenant: str, held: contextlib.AsyncExitStack) -> bytes | None:
        """Return the body; None where the client has left. The length that it announces may be missing or wrong."""
        headers, importing = Headers(scope=scope), scope["path"].endswith("/import")
        announced, limit = headers.get("content-length", "0"), self.imports if importing else self.limit
        if not announced.isdecimal() or len(announced) > 18 or int(announced) > limit:
            raise _too_large(limit)
        if importing or scope["path"].endswith("/export"):
            await self._wait_for_file(tenant, held)
        if int(announced) == 0 and "transfer-encoding" not in headers:
            return b""
        held.enter_context(self.tenant_limit.hold(tenant))
        try:
            async with asyncio.timeout(self.seconds):
                body = await _read(receive, limit)
        except TimeoutError as error:
            raise ApiError(408, f"the body did not come within {self.seconds:g} seconds", "too_slow") from error
        if body is not None:
            if importing:
                await self._count(_header(body), _HEADER_VALUES, nested=True)
            else:
                await self._count(body, self.values)
        return body

    async def _wait_for_file(self, tenant: str, held: contextlib.AsyncExitStack) -> None:
        """Wait until a state file may be in memory, for no longer than a body: others may take theirs slowly."""
        try:
            async with asyncio.timeout(self.seconds):
                await held.enter_async_context(self.moving.hold(tenant))
                await held.enter_async_context(self.files)
        except TimeoutError as error:
            message = "too many memories are exported and imported at once: try again in a moment"
            raise ApiError(429, message, "rate_limit_exceeded") from error

    async def _count(self, text: bytes, most: int, nested: bool = False) -> None:
        if not json.detect_encoding(text).startswith("utf-8"):  # the parser would take it, and count otherwise
            raise ApiError(400, "the JSON text is not in UTF-8: encode it so", "not_utf8")
        if len(text) <= _SMALL:
            many = holds_more(text, most, nested)
        else:
            async with self.counting:
                many = await run_in_threadpool(holds_more, text, most, nested)
        if many:
            raise ApiError(413, f"the body holds more than {most:,} values: send less at once", "body_too_large")


async def _read(receive: Receive, limit: int) -> bytes | None:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return bytes(body)


def holds_more(body: bytes, most: int, nested: bool = False) -> bool:
    """Whether a JSON text may hold more values than `most`, by its commas and brackets outside of strings.

    Args:
        body: the text in UTF-8; where it is none, the answer means nothing and costs no more.
        most: values.
        nested: whether its strings may be JSON texts, too, so that what is in them counts. Default false.

    Returns:
        Whether it may.
    """
    if sum(map(body.count, _SIGNS)) <= most:
        return False  # even with those in strings
    if nested:
        return True
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # now each quote begins or ends a string
    parts = plain.split(b'"', 4 * most)  # an entry has at most a name and a text
    return len(parts) > 4 * most or sum(part.count(sign) for part in parts[::2] for sign in _SIGNS) > most


def _header(state: bytes) -> bytes:
    """Return the JSON text of a state file, which comes after its length in eight bytes."""
    return state[8 : 8 + int.from_bytes(state[:8], "little")]


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit:,} bytes: send less at once", "body_too_large")


def _again(body: bytes, receive: Receive) -> Receive:
    """Give a body that was read to those who come after, and then whatever else comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again
