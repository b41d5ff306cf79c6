"""The values that were used last, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """Keeps values in memory until others need their place; safe to use from several threads.

    Args:
        limit: bytes that the values may have together; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()  # the last was used last
        self._lock = Lock()

    def get(self, key: Hashable) -> V | None:
        """Return a value, or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Keep a value of `size` bytes, in place of the least recently used ones."""
        with self._lock:
            self._forget(key)
            self._values[key] = value, size
            self.bytes += size
            while self.bytes > self.limit:
                _, (_, freed) = self._values.popitem(last=False)
                self.bytes -= freed

    def drop(self, key: Hashable) -> None:
        """Forget a value, if it is there."""
        with self._lock:
            self._forget(key)

    def _forget(self, key: Hashable) -> None:
        if key in self._values:
            _, freed = self._values.pop(key)
            self.bytes -= freed
