"""One at a time: of the requests of a memory, of the state files of a tenant."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from titans.serving.errors import ApiError

MOST_FOR_ONE = 8  # requests for one name at once, so that it cannot take the places of all others


class Locks:
    """One lock for each name that is in use, fair: who asks first is first."""

    def __init__(self) -> None:
        self.held: dict[Any, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def hold(self, name: Any) -> AsyncIterator[None]:
        """Wait until nobody else holds the name.

        Raises:
            ApiError: 429, too many wait for it already.
        """
        lock, users = self.held.get(name, (asyncio.Lock(), 0))
        if users >= MOST_FOR_ONE:
            raise ApiError(429, "too many requests of one kind at once: wait for their answers", "rate_limit_exceeded")
        self.held[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self.held.pop(name)
            if users > 1:
                self.held[name] = lock, users - 1
