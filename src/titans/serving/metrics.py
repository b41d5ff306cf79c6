"""What the server counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response


class Metrics:
    """The server's numbers, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("titans_requests", "Requests answered", ["route", "status"], registry=registry)
        self.seconds = Histogram("titans_request_seconds", "Time until the answer began", ["route"], registry=registry)
        self.tokens_read = Counter("titans_tokens_read", "Tokens read, prompts and answers", registry=registry)
        self.steps = Counter("titans_steps", "Forward passes", registry=registry)
        self.batch = Histogram(
            "titans_batch_rows", "Requests in a forward pass", buckets=(1, 2, 4, 8, 16, 32, 64), registry=registry
        )
        self.at_work = Gauge("titans_requests_at_work", "Requests in the engine", registry=registry)
        self.waiting = Gauge("titans_requests_waiting", "Requests that wait for the engine", registry=registry)

    def step(self, rows: int, tokens: int) -> None:
        """Count a forward pass; called from the engine's thread."""
        self.steps.inc()
        self.tokens_read.inc(tokens)
        self.batch.observe(rows)

    def response(self, at_work: int, waiting: int) -> Response:
        """Return everything as text."""
        self.at_work.set(at_work)
        self.waiting.set(waiting)
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)
