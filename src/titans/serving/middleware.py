"""Around every request: headers for browsers, a log line and a count."""

from __future__ import annotations

import logging
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from titans.serving.errors import as_api_error
from titans.serving.metrics import Metrics

logger = logging.getLogger("titans.access")
_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class AccessLog:
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
