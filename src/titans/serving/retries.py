"""Requests that are sent again: a retry with the same `Idempotency-Key` gets the same answer and changes nothing."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import Header
from pydantic import BeforeValidator, WithJsonSchema

from titans.serving.errors import ApiError
from titans.serving.jobs import Finished
from titans.serving.replies import Reply
from titans.serving.rows import Piece

KEPT_SECONDS = 60 * 60  # that an answer is kept after it has ended
KEPT_BYTES = 16 << 20  # of the answers kept for one tenant, about; the newest is kept whatever its size
_TOKEN_BYTES = 400  # of a traced token

Key = Annotated[
    str | None,
    WithJsonSchema({"type": "string", "maxLength": 255}),
    Header(alias="Idempotency-Key", max_length=255, description="Of your making: a retry with it changes nothing."),
]


def _unquoted(value: object) -> object:
    """HTTP writes what tells two states of a thing apart in quotes."""
    return value[1:-1] if isinstance(value, str) and re.fullmatch(r'"\d+"', value) else value


Expected = Annotated[
    int | None,
    BeforeValidator(_unquoted),
    WithJsonSchema({"type": "integer", "minimum": 0}),
    Header(
        alias="If-Match",
        ge=0,
        lt=1 << 53,
        description="The version that the memory must be at, as in an answer's `version`; 0 where it must not exist.",
    ),
]
Events = AsyncGenerator[Piece | Finished, None]


def check_version(expected: int | None, current: int) -> None:
    """Refuse to change a memory that is not as it was expected to be.

    Args:
        expected: the version that the client names; None for any.
        current: the version that there is; 0 for none.

    Raises:
        ApiError: 412, they differ.
    """
    if expected not in (None, current):
        message = f"the memory is at version {current} and not {expected}: nothing was done"
        raise ApiError(412, message, "memory_version", "If-Match")


class Recording:
    """One request's events, which everybody who asks for them is told from the first on.

    Args:
        mark: what tells its request from another one.
        reply: of its answer, whose id every retry gets, too.
        events: of the request; it runs to its end also when nobody listens any more.
    """

    def __init__(self, mark: str, reply: Reply, events: Events) -> None:
        self.mark, self.reply = mark, reply
        self.told: list[Piece | Finished] = []
        self.error: Exception | None = None
        self.ended: float | None = None
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._record(events))

    async def _record(self, events: Events) -> None:
        try:
            async for event in events:
                self.told.append(event)
                self._wake()
        except Exception as error:
            self.error = error
        self.ended = time.monotonic()
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def replay(self) -> Events:
        """Tell all events, those to come as they come; raise what the request raised."""
        heard = 0
        while True:
            news = self._news
            for event in self.told[heard:]:
                heard += 1
                yield event
            if heard == len(self.told):
                if self.ended is not None:
                    break
                await news.wait()
        if self.error is not None:
            raise self.error

    @property
    def bytes(self) -> int:
        """The size of what is kept, about."""
        pieces = [event for event in self.told if isinstance(event, Piece)]
        return sum(_TOKEN_BYTES + len(piece.text) + _TOKEN_BYTES * len(piece.trace) for piece in pieces)


class Retries:
    """The recordings of each tenant by their keys, in the memory of this process: a restart forgets them."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Recording]] = {}

    def find(self, tenant: str, key: str, mark: str) -> Recording | None:
        """Return the recording of a request that came before; one that failed has changed nothing, and is not kept.

        Raises:
            ApiError: 422, it was another request.
        """
        kept = self._kept.get(tenant, {})
        self._sweep(kept)
        found = kept.get(key)
        if found is not None and found.mark != mark:
            message = "this Idempotency-Key came with another request before: make a new one for every request"
            raise ApiError(422, message, "idempotency_key_reused", "Idempotency-Key")
        return found

    def keep(self, tenant: str, key: str, recording: Recording) -> None:
        """Keep a recording, in place of the oldest where there are too many."""
        self._kept.setdefault(tenant, {})[key] = recording

    def _sweep(self, kept: dict[str, Recording]) -> None:
        oldest = time.monotonic() - KEPT_SECONDS
        total = 0
        for key, one in reversed(list(kept.items())):  # the newest first
            if one.ended is None:
                continue
            too_many = total > 0 and total + one.bytes > KEPT_BYTES
            if one.error is not None or one.ended < oldest or too_many:
                del kept[key]
            else:
                total += one.bytes
