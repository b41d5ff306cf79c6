"""Put a server together and run it until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from titans.errors import TitansError
from titans.models.write_policy import WritePolicy
from titans.persistence import MemoryStore
from titans.serving.engine import Engine
from titans.serving.metrics import Metrics
from titans.serving.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI

    from titans.serving.access import Keys
    from titans.serving.app import Limits

logger = logging.getLogger(__name__)


def build_app(
    model: Any,
    tokenizer: Any,
    name: str,
    *,
    memories: str,
    keys: Keys | None,
    policy: WritePolicy,
    allow_gated: bool,
    max_batch: int,
    max_queue: int,
    max_memories: int | None,
    limits: Limits,
) -> FastAPI:
    """Make the application that serves a model.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        name: the model's folder, whose last part is its id.
        memories: where the memories are kept: a folder or an fsspec URL.
        keys: the API keys; None for none.
        policy: which tokens new memories write.
        allow_gated: whether requests may write gated.
        max_batch: requests in the engine at once.
        max_queue: requests of a tenant that may wait.
        max_memories: memories a tenant may have; None for any number.
        limits: of a request.

    Returns:
        The application.

    Raises:
        TitansError: the store or the folder's write policy is not usable.
    """
    from titans.serving.app import create_app

    metrics = Metrics()
    engine = Engine(model, tokenizer, max_batch=max_batch, on_step=metrics.step, on_surprise=metrics.surprise.observe)
    store = MemoryStore(memories, model, max_state_bytes=limits.state, max_memories=max_memories)
    service = Service(engine, store, policy, WritePolicy.load(name), max_queue, allow_gated, metrics)
    return create_app(service, Path(name).resolve().name, keys, metrics, limits)


def serve(
    app: FastAPI, host: str, port: int, announce: Callable[[str], None], *, keys: Keys | None, stop_seconds: int
) -> None:
    """Serve until SIGTERM or Ctrl-C; then finish what runs and save every memory. SIGHUP reads the keys again.

    Where Ctrl-C is ignored, as in the background of a script, it stays so.

    Args:
        app: of `application`.
        host: the address to bind to; checked against the keys by `check_host` before the model is loaded.
        port: the port; 0 for any free one.
        announce: called with the server's address once it listens.
        keys: the API keys; None for none.
        stop_seconds: that answers and slow clients have to end when the server is told to stop; after them, and at a
            second Ctrl-C, answers are cut.

    Raises:
        TitansError: the address cannot be bound to.
    """
    import uvicorn

    from titans.serving.connections import AT_ONCE, QUEUE, Connection, most_connections

    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TitansError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    address = f"[{host}]" if ":" in host else host
    # uvicorn stops in order, then raises the signal again for this handler.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    announce(f"http://{address}:{listening.getsockname()[1]}")

    class Bounded(Connection):
        most = most_connections()

    service: Service = app.state.service
    config = uvicorn.Config(
        app, loop="asyncio", http=Bounded, ws="none", proxy_headers=False, backlog=AT_ONCE, log_config=None,
        access_log=False, timeout_graceful_shutdown=stop_seconds,
    )  # fmt: skip

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            if hasattr(signal, "SIGHUP"):  # not on Windows
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _read_again, keys)
            await super().startup(sockets)
            listening.listen(QUEUE)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Also what runs without a client, for the retries to come, ends by then.
            cut = asyncio.get_running_loop().call_later(stop_seconds, service.abandon)
            await super().shutdown(sockets)
            if self.force_exit:  # at a second Ctrl-C, uvicorn leaves the rest undone
                service.abandon()
                await self.lifespan.shutdown()
            cut.cancel()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if sig == signal.SIGINT and ignored:  # uvicorn listens to it all the same
                return
            service.draining = True  # connections that are still open get status 503 from here on
            super().handle_exit(sig, frame)

    Server(config).run(sockets=[listening])


def _read_again(keys: Keys | None) -> None:
    if keys is None:
        logger.info("SIGHUP: there are no keys to read again")
    else:
        keys.reload()
