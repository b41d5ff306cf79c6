"""Around every request: a limit to its body, headers for browsers, a log line and a count."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from titans.serving.errors import ApiError
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
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, counting its bytes; the length that it announces may be missing or wrong."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self.limit:
            await self._refusal()(scope, receive, send)
            return
        received, refused = 0, False

        async def counted() -> Message:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            refused = refused or received > self.limit
            if refused:
                raise self._error()
            return message

        async def unless_refused(message: Message) -> None:
            if not refused:  # whatever the application makes of our error
                await send(message)

        with contextlib.suppress(ApiError):
            await self.app(scope, counted, unless_refused)
        if refused:
            await self._refusal()(scope, receive, send)

    def _error(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self.limit:,} bytes: send less at once", "body_too_large")

    def _refusal(self) -> ASGIApp:
        return self._error().response()


class Observed:
    """Adds headers, logs each request and counts it.

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
        started, status, first = time.perf_counter(), 500, 0.0
        name = uuid.uuid4().hex

        async def noted(message: Message) -> None:
            nonlocal status, first
            if message["type"] == "http.response.start":
                status, first = message["status"], time.perf_counter() - started
                message["headers"] = [*message["headers"], *_HEADERS, (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never the path itself: metrics must stay few
            self.metrics.requests.labels(route, str(status)).inc()
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
