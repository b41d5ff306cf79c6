"""Whether the store can be written, asked as often as anybody likes and tried every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from titans.persistence import StoreError
from titans.serving.errors import as_api_error

FRESH_SECONDS = 5.0  # that what was found holds
PATIENCE_SECONDS = 5.0  # after which a store that says nothing does not work
logger = logging.getLogger(__name__)


class Readiness:
    """Tries the store for those who ask.

    Args:
        attempt: writes something there; raises a StoreError where that fails.
    """

    def __init__(self, attempt: Callable[[], Awaitable[None]]) -> None:
        self._attempt = attempt
        self._lock = asyncio.Lock()
        self._found: StoreError | None = None
        self.until = 0.0

    async def check(self) -> None:
        """Tell whether the store can be written.

        Raises:
            ApiError: 507, it is full; 503, it does not work otherwise.
        """
        async with self._lock:
            if time.monotonic() >= self.until:
                self._found = await self._try()
                self.until = time.monotonic() + FRESH_SECONDS
        if self._found is not None:
            raise as_api_error(self._found)

    async def _try(self) -> StoreError | None:
        try:
            await asyncio.wait_for(self._attempt(), PATIENCE_SECONDS)
        except StoreError as error:
            logger.error("not ready: %s", error)
            return error
        except TimeoutError:
            logger.error("not ready: the store does not answer")
            return StoreError("failed", f"it did not answer within {PATIENCE_SECONDS:g} s")
        return None
