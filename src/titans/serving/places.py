"""How many requests each tenant may have at once: one tenant's flood takes no place of another's."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from titans.serving.errors import ApiError


class Places:
    """Counts the requests of each tenant and refuses those above a number.

    Args:
        most: requests that one tenant may have at once.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken: Counter[str] = Counter()

    def check(self, tenant: str) -> None:
        """Refuse a request that there is no place for.

        Raises:
            ApiError: 429, the tenant has all its places taken.
        """
        if self.taken[tenant] >= self.most:
            raise ApiError(429, "too many requests at once: try again in a moment", "rate_limit_exceeded")

    def take(self, tenant: str) -> None:
        """Take a place; see `check`."""
        self.check(tenant)
        self.taken[tenant] += 1

    def free(self, tenant: str) -> None:
        """Give a place back."""
        self.taken[tenant] -= 1
        if not self.taken[tenant]:
            del self.taken[tenant]

    @contextlib.contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Take a place while the body runs."""
        self.take(tenant)
        try:
            yield
        finally:
            self.free(tenant)
