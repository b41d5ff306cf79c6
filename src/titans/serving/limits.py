"""Limits on what runs at once: requests of a tenant, and one at a time of a memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

from titans.serving.errors import ApiError

MOST_FOR_ONE = 8  # requests for one name at once, so that it cannot take the place of all others


class TenantLimit:
    """Counts the requests of each tenant and refuses those above a number.

    Args:
        most: requests that one tenant may have at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: Counter[str] = Counter()

    def check(self, tenant: str) -> None:
        """Refuse a request above the number.

        Raises:
            ApiError: 429, the tenant has as many requests as it may.
        """
        if self.taken[tenant] >= self.most:
            raise ApiError(429, "too many requests at once: try again in a moment", "rate_limit_exceeded")

    def acquire(self, tenant: str) -> None:
        """Count a request in; see `check`."""
        self.check(tenant)
        self.taken[tenant] += 1

    def release(self, tenant: str) -> None:
        """Count a request out."""
        self.taken[tenant] -= 1
        if not self.taken[tenant]:
            del self.taken[tenant]

    @contextlib.contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Count a request while the body runs."""
        self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)


class KeyedLocks:
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
