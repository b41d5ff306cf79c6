"""Around every request: a limit to its body, headers for browsers, a log line and a count."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from titans.serving.errors import ApiError, as_api_error
from titans.serving.metrics import Metrics

logger = logging.getLogger("titans.access")
_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class BodyLimit:
    """Refuses bodies that are too large, before they are read.

    Args:
        app: what comes after.
        limit: bytes.
        imports: bytes of a state file.
    """

    def __init__(self, app: ASGIApp, limit: int, imports: int) -> None:
        self.app, self.limit, self.imports = app, limit, imports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, counting its bytes; the length that it announces may be missing or wrong."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.imports if scope["path"].endswith("/import") else self.limit
        error = ApiError(413, f"the body is larger than {limit:,} bytes: send less at once", "body_too_large")
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > limit:
            await error.response()(scope, receive, send)
            return
        received, refused = 0, False

        async def counted() -> Message:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            refused = refused or received > limit
            if refused:
                raise error
            return message

        async def unless_refused(message: Message) -> None:
            if not refused:  # whatever the application makes of our error
                await send(message)

        with contextlib.suppress(ApiError):
            await self.app(scope, counted, unless_refused)
        if refused:
            await error.response()(scope, receive, send)


class Observed:
    """Adds headers, logs each request and counts it; tells of an error that nothing else expected.

    Args:
        app: what comes after.
        metrics: where to count.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and note how it went."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, first = time.perf_counter(), 499, None  # what never begins has been left by its client
        name = uuid.uuid4().hex

        async def noted(message: Message) -> None:
            nonlocal status, first
            if message["type"] == "http.response.start":
                status, first = message["status"], time.perf_counter() - started
                message["headers"] = [*message["headers"], *_HEADERS, (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception as error:
            logger.exception("unexpected", extra={"fields": {"request": name}})
            if first is None:
                await as_api_error(error).response()(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never the path itself: metrics must stay few
            self.metrics.requests.labels(route, str(status)).inc()
            if first is not None:
                self.metrics.seconds.labels(route).observe(first)
            fields = {
                "request": name,
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(time.perf_counter() - started, 4),
                "tenant": scope.get("state", {}).get("tenant"),
            }
            logger.info("request", extra={"fields": fields})
