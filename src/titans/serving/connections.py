"""The connections of clients: how many there may be, and how long one may keep silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)
AT_ONCE = 16  # connections that are taken in before any of them is looked at
QUEUE = 1024  # connections that the system holds for us meanwhile
_TAKEN = 1 << 14  # bytes that are taken in from a client before others have their turn: chunks of a byte take long
_RESERVE = 256  # descriptors for files, and for connections that are about to be closed


class Connection(H11Protocol):
    """uvicorn's connection, closed when its client keeps silent, or when there are too many.

    Where there are too many, the one that is closed is idle: first of those whose clients have never been let in, and
    of these the one that is silent for longest. So whoever opens connections and says nothing closes his own.
    """

    head_seconds: float = 10  # for a request's head to come, whole
    stall_seconds: float = 60  # for a client to take in anything of its answer
    most: int = 1024 - _RESERVE

    def connection_made(self, transport: Any) -> None:
        """Take in a client."""
        transport.max_size = _TAKEN  # which asyncio's transports have
        self._head, self._stall = _Timer(self.loop), _Timer(self.loop)
        super().connection_made(transport)
        self.since = self.loop.time()
        self._await_head()
        if sum(not other.transport.is_closing() for other in self.connections) > self.most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take in what a client says; what ends the waiting is a whole head and no part of one."""
        super().data_received(data)
        if self.busy:
            self.since = self.loop.time()
            self._head.stop()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a client."""
        self._head.stop()
        self._stall.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a client that takes in its answer more slowly than it is told."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Go on telling."""
        self._stall.stop()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which no other request comes."""
        super().timeout_keep_alive_handler()
        self._watch()  # a client that takes in nothing keeps it open

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    @property
    def known(self) -> bool:
        """Whether the client's last request was let in, by its key where there are keys."""
        cycle: Any = self.cycle
        return cycle is not None and "tenant" in cycle.scope["state"]

    def _await_head(self) -> None:
        if not self._head.runs:
            self._head.start(self.head_seconds, self._late)

    def _late(self) -> None:
        self.transport.close()
        self._watch()

    def _watch(self) -> None:
        """Give up a client that takes in nothing for a while."""
        self._stall.start(self.stall_seconds, self._stalled, self.transport.get_write_buffer_size())

    def _stalled(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:
            self._watch()
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        others: set[Any] = self.connections - {self}
        idle = [other for other in others if not other.busy and not other.transport.is_closing()]
        first = min(idle, key=lambda other: (other.known, other.since), default=self)
        first.transport.abort()
        logger.warning("all %s connections are taken: one that is idle makes room", self.most)


class _Timer:
    """One call at a time that is made later, unless it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.handle: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self.handle is not None

    def start(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.stop()
        self.handle = self.loop.call_later(seconds, call, *arguments)

    def stop(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None


def most_connections() -> int:
    """How many connections leave the process the descriptors that it needs for other things."""
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit
        return Connection.most
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        allowed = 1 << 16
    return max(allowed - _RESERVE, allowed // 2)
