"""Requests that are sent again: a retry with the same `Idempotency-Key` gets the same answer and changes nothing."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncGenerator, Callable
from typing import Annotated

from fastapi import Header
from pydantic import BeforeValidator, WithJsonSchema

from titans.serving.errors import ApiError
from titans.serving.protocol import Delta, Finished
from titans.serving.responses import Reply

KEPT_SECONDS = 60 * 60  # that an answer is kept after it has ended
KEPT_BYTES = 16 << 20  # of the answers kept for one tenant, about; the newest is kept whatever its size
_RECORD_BYTES = 4096  # of a recording of nothing, about
_TOKEN_BYTES = 400  # of a traced token

Key = Annotated[
    str | None,
    WithJsonSchema({"type": "string", "maxLength": 255}),
    Header(alias="Idempotency-Key", max_length=255, description="Of your making: a retry with it changes nothing."),
]


def _version(value: object) -> object:
    """Take a version; HTTP writes what tells two states of a thing apart in quotes."""
    if value is None:
        return None
    named = re.fullmatch(r'("?)([0-9]{1,16})\1', str(value))
    if named is None or int(named[2]) >= 1 << 53:
        message = f'If-Match is {str(value)[:40]!r}: expected a version number in quotes, such as "7"'
        raise ApiError(400, message, param="If-Match")
    return int(named[2])


Expected = Annotated[
    int | None,
    BeforeValidator(_version),
    WithJsonSchema({"type": "integer", "minimum": 0}),
    Header(
        alias="If-Match",
        description="The version that the memory must be at, as in an answer's `version`; 0 where it must not exist.",
    ),
]
Events = AsyncGenerator[Delta | Finished, None]


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
        ended: called at the end.
    """

    def __init__(self, mark: str, reply: Reply, events: Events, ended: Callable[[], None]) -> None:
        self.mark, self.reply = mark, reply
        self.told: list[Delta | Finished] = []
        self.error: Exception | None = None
        self.ended = math.inf
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._record(events, ended))

    async def _record(self, events: Events, ended: Callable[[], None]) -> None:
        try:
            async for event in events:
                self.told.append(event)
                self._wake()
        except Exception as error:
            self.error = error
        self.ended = time.monotonic()
        ended()
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
                if self.ended < math.inf:
                    break
                await news.wait()
        if self.error is not None:
            raise self.error

    def size(self) -> int:
        """Count the bytes of what is kept, about."""
        pieces = [event for event in self.told if isinstance(event, Delta)]
        return _RECORD_BYTES + sum(_TOKEN_BYTES + len(piece.text) + _TOKEN_BYTES * len(piece.trace) for piece in pieces)


class IdempotentRequests:
    """The recordings of each tenant by their keys, in the memory of this process: a restart forgets them."""

    def __init__(self) -> None:
        self.kept: defaultdict[str, _Kept] = defaultdict(_Kept)

    def find(self, tenant: str, key: str, mark: str) -> Recording | None:
        """Return the recording of a request that came before; one that failed has changed nothing, and is not kept.

        Raises:
            ApiError: 422, it was another request.
        """
        found = self.kept[tenant].find(key)
        if found is not None and found.mark != mark:
            message = "this Idempotency-Key came with another request before: make a new one for every request"
            raise ApiError(422, message, "idempotency_key_reused", "Idempotency-Key")
        return found

    def record(self, tenant: str, key: str, mark: str, reply: Reply, events: Events) -> Recording:
        """Begin a recording under a key that `find` knows nothing of, and keep it in place of the oldest; see it."""
        kept = self.kept[tenant]
        recording = Recording(mark, reply, events, lambda: kept.end(key))
        kept.running[key] = recording
        return recording


class _Kept:
    """One tenant's recordings: those that run, and those that have ended in the order of their ends.

    Each is added, measured and forgotten once, so that a request costs the same however many there are.
    """

    def __init__(self) -> None:
        self.running: dict[str, Recording] = {}
        self.ended: OrderedDict[str, tuple[Recording, int]] = OrderedDict()  # with their sizes
        self.bytes = 0  # of those that have ended

    def find(self, key: str) -> Recording | None:
        self._forget()
        return self.running.get(key) or self.ended.get(key, (None, 0))[0]

    def end(self, key: str) -> None:
        recording = self.running.pop(key)
        if recording.error is None:
            size = recording.size()
            self.ended[key] = recording, size
            self.bytes += size
        self._forget()

    def _forget(self) -> None:
        """Forget the oldest while it is too old, or they are too many; the newest is kept whatever its size."""
        since = time.monotonic() - KEPT_SECONDS
        while self.ended:
            first, size = next(iter(self.ended.values()))
            if first.ended >= since and (self.bytes <= KEPT_BYTES or len(self.ended) == 1):
                return
            self.ended.popitem(last=False)
            self.bytes -= size
