"""What the server counts, for Prometheus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from titans.persistence import StoreError
from titans.serving.protocol import MemoryReport

_SIZES = tuple(base * 10.0**power for power in range(-3, 4) for base in (1, 3))  # of what differs from model to model


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

        self.surprise = Histogram(
            "titans_surprise", "Mean surprise of the tokens a request reads in a forward pass, of every 16th",
            buckets=_SIZES, registry=registry,
        )  # fmt: skip
        self.memory_tokens = Counter(
            "titans_memory_tokens", "Tokens written, skipped and dropped, summed over memory layers", ["what"],
            registry=registry,
        )  # fmt: skip
        self.norm = Histogram(
            "titans_memory_norm", "Norm of a memory's weights after a request", buckets=_SIZES, registry=registry
        )
        self.store_seconds = Histogram("titans_store_seconds", "Time of the store's calls", ["call"], registry=registry)
        self.store_errors = Counter(
            "titans_store_errors", "The store is full, read-only, gone or failed; a memory is damaged", ["kind"],
            registry=registry,
        )  # fmt: skip
        for kind in ("full", "read-only", "gone", "failed", "damaged"):
            self.store_errors.labels(kind)  # told from the start: what was never counted cannot rise

    def remembered(self, memory: MemoryReport) -> None:
        """Count what a request did to its memory."""
        for what in ("written", "skipped", "dropped"):
            self.memory_tokens.labels(what).inc(getattr(memory.counts, what))
        self.norm.observe(memory.norm)

    @contextlib.contextmanager
    def store_call(self, call: str) -> Iterator[None]:
        """Measure a call of the store; may run in any thread."""
        started = time.perf_counter()
        try:
            yield
        except StoreError as error:
            self.store_errors.labels(error.kind).inc()
            raise
        finally:
            self.store_seconds.labels(call).observe(time.perf_counter() - started)

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
