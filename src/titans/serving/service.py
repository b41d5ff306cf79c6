"""What stands between the API and the engine: admission, one request of a memory at a time, and saving."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from titans.errors import TitansError
from titans.models.memory_state import MemoryState
from titans.models.write_policy import WritePolicy, write_counts, write_modes
from titans.persistence import MemoryInfo, MemoryStore, StateFileError, StoreCounts, StoreError
from titans.serving.engine import Engine
from titans.serving.errors import ApiError, as_api_error
from titans.serving.idempotency import check_version
from titans.serving.limits import KeyedLocks, TenantLimit
from titans.serving.metrics import Metrics
from titans.serving.protocol import (
    Delta,
    EngineFailure,
    EngineRequest,
    Event,
    Finished,
    MemoryReport,
    ServiceRequest,
)
from titans.serving.readiness import Readiness

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Service:
    """Runs requests against the engine and keeps their memories.

    A memory is saved when a request of it has ended, before the client is told so: a crash loses at most the
    requests in flight. A request that is cancelled after its prompt was read has changed the memory, too; one that is
    cancelled before has not.

    Args:
        engine: runs the model; started here.
        store: keeps the memories.
        policy: which tokens a new memory writes unless its request says so.
        gated: the model's calibrated policy; None where it was never calibrated.
        max_queue: requests of one tenant that may wait for the engine; more are refused.
        allow_gated: whether requests may write gated, which takes longer. Default true.
        metrics: where to count. Default: for nobody.
    """

    def __init__(
        self,
        engine: Engine,
        store: MemoryStore,
        policy: WritePolicy,
        gated: WritePolicy | None,
        max_queue: int,
        allow_gated: bool = True,
        metrics: Metrics | None = None,
    ) -> None:
        self.engine, self.store, self.gated, self.allow_gated = engine, store, gated, allow_gated
        self.metrics = metrics or Metrics()
        with torch.no_grad():
            state = engine.model.initial_state(1)
        # In which all memories start. Without a policy every token is written, too, and faster.
        self.fresh: MemoryState = state if policy.write == "always" else policy.start(state)
        self.tenant_limit = TenantLimit(engine.max_batch + max_queue)
        self.draining = False
        self.locks = KeyedLocks()
        self.tasks: dict[asyncio.Task[None], asyncio.Event] = {}  # with what cancels each
        self.disk = ThreadPoolExecutor(4, "titans-store")
        self.readiness = Readiness(lambda: self.on_disk(store.check))
        self.counts: StoreCounts | None = None  # None until the store has been counted

    def start(self) -> None:
        """Start the engine, and count what the store holds, which may take a while and holds up nothing."""
        self.engine.start()
        threading.Thread(target=self.count, name="titans-count", daemon=True).start()

    def count(self) -> None:
        """Count what the store holds, and log it."""
        try:
            self.counts = counts = self.store.count()
        except TitansError as error:
            logger.error("the memories cannot be counted: %s", error)
            return
        known = f"{counts.memories:,} memories of {counts.tenants:,} tenants, {counts.damaged:,} of them damaged"
        if counts.foreign:
            logger.warning("%s and %s of another model: see titans memories", known, f"{counts.foreign:,}")
        else:
            logger.info(known)

    async def drain(self) -> None:
        """Take no more requests, finish what runs, save it, and stop."""
        self.draining = True
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        await asyncio.to_thread(self.engine.close)
        self.disk.shutdown()

    def abandon(self) -> None:
        """Let what runs end as if all clients had left."""
        for cancelled in self.tasks.values():
            cancelled.set()

    async def on_disk(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a call of the store in a thread of its own."""

        def measured() -> T:
            with self.metrics.store_call(call.__name__):
                return call(*arguments, **options)

        return await asyncio.get_running_loop().run_in_executor(self.disk, measured)

    async def on_kept(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Run a call that reads what is kept: what is wrong with a file there is not the client's mistake."""
        try:
            return await self.on_disk(call, *arguments, **options)
        except StateFileError as error:
            self.metrics.store_errors.labels("damaged").inc()
            logger.error("a stored memory is damaged", exc_info=error)
            message = "the stored memory is damaged: reset or delete it, or import a copy"
            raise ApiError(500, message, "memory_damaged") from error

    async def ready(self) -> None:
        """Find out whether requests are taken and their memories can be saved; asked often, it tries every few seconds.

        Raises:
            ApiError: 503, the server is stopping, or its store or its engine does not work; 507, the store is full.
        """
        if self.draining:
            raise ApiError(503, "the server is stopping", "stopping")
        if not self.engine.alive:
            raise ApiError(503, "the engine has stopped: start the server again", "engine_stopped")
        await self.readiness.check()

    def admit(self, tenant: str) -> None:
        """Refuse a request that there is no room for.

        Raises:
            ApiError: 503 while the server stops, 429 while the tenant has as many as it may.
        """
        if self.draining:
            raise ApiError(503, "the server is stopping: try again in a moment", "stopping")
        self.tenant_limit.check(tenant)

    @contextlib.contextmanager
    def slot(self, tenant: str) -> Iterator[None]:
        """Count a request of a tenant while the body runs; see `admit`."""
        self.admit(tenant)
        with self.tenant_limit.hold(tenant):
            yield

    async def events(
        self, tenant: str, asked: ServiceRequest, cancelled: asyncio.Event
    ) -> AsyncGenerator[Delta | Finished, None]:
        """Run one request; leaving the loop cancels it.

        Args:
            tenant: whose memory it is.
            asked: what is asked for.
            cancelled: set by the caller when nobody waits for the answer any more.

        Yields:
            Text and traces as they become known, then `Finished`.

        Raises:
            ApiError: there is no room.
            Exception: what went wrong, to be told with `as_api_error`.
        """
        self.admit(tenant)
        self.tenant_limit.acquire(tenant)  # until the work has ended, which may be after the client has left
        queue: asyncio.Queue[Delta | Finished | Exception] = asyncio.Queue()
        task = asyncio.create_task(self._work(tenant, asked, queue.put_nowait, cancelled))
        self.tasks[task] = cancelled
        task.add_done_callback(lambda task: self._ended(tenant, task))
        try:
            while True:
                event = await queue.get()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            cancelled.set()

    def _ended(self, tenant: str, task: asyncio.Task[None]) -> None:
        del self.tasks[task]
        self.tenant_limit.release(tenant)

    async def _work(
        self,
        tenant: str,
        asked: ServiceRequest,
        tell: Callable[[Delta | Finished | Exception], None],
        cancelled: asyncio.Event,
    ) -> None:
        """Do a request to its end, whether or not anybody still listens."""
        try:
            if asked.memory is None:
                tell(await self._generate(tenant, asked, self._rewritten(self.fresh, asked), tell, cancelled, None))
                return
            async with self.locks.hold((tenant, asked.memory)):
                if cancelled.is_set():
                    raise _left()
                stored = await self.on_kept(self.store.get, tenant, asked.memory)
                version = 0 if stored is None else stored.version
                check_version(asked.expected, version)
                state = self._rewritten(self.fresh if stored is None else stored.state, asked)

                async def save(state: MemoryState) -> MemoryInfo:
                    try:
                        return await self.on_disk(self.store.put, tenant, asked.memory, state, expected=version)
                    except StoreError as error:
                        told = as_api_error(error)
                        message = f"the memory was not saved and is as it was before this request: {told.message}"
                        raise ApiError(told.status, message, told.code) from error

                tell(await self._generate(tenant, asked, state, tell, cancelled, save))
        except Exception as error:
            if not isinstance(error, TitansError | ApiError):
                logger.exception("a request failed")
            tell(error)

    async def _generate(
        self,
        tenant: str,
        asked: ServiceRequest,
        state: MemoryState,
        tell: Callable[[Delta], None],
        cancelled: asyncio.Event,
        save: Callable[[MemoryState], Any] | None,
    ) -> Finished:
        """Have the engine read and say, pass on what it tells, and save the memory it leaves."""
        before = write_counts(state)[0]
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def emit(event: Event) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        prompt = self._prompt(asked, state)
        request = EngineRequest(prompt, state, asked.params, keep=save is not None, emit=emit, tenant=tenant)
        watcher = asyncio.create_task(_when(cancelled, request))
        self.engine.submit(request)
        try:
            while isinstance(event := await queue.get(), Delta):
                tell(event)
        finally:
            watcher.cancel()
        if isinstance(event, EngineFailure):
            raise ApiError(500, "the model failed: the server's log says why", "model_failed") from event.error
        if event.state is None:
            raise _left()
        info = None if save is None else await save(event.state)
        report = MemoryReport.of(event.state, info, before, event.read)
        self.metrics.remembered(report)
        return Finished(event.reason, len(prompt), event.said, report)

    def _prompt(self, asked: ServiceRequest, state: MemoryState) -> list[int]:
        """Put together what is to be read, with the bos token at the start of a stream and nowhere else."""
        bos, prompt = self.engine.tokenizer.bos_token_id, list(asked.prompt)
        if bos is not None and prompt[:1] == [bos]:
            del prompt[0]
        if state.tokens:
            prompt = [*asked.joint, *prompt]
        elif bos is not None:
            prompt = [bos, *prompt]
        if not prompt:
            raise ApiError(400, "the prompt is empty: give some text to go on from", param="prompt")
        return prompt

    def _rewritten(self, state: MemoryState, asked: ServiceRequest) -> MemoryState:
        """Let the state be written as the request asks."""
        mode = write_modes(state)[0]
        if not self.allow_gated and (asked.write or mode) == "gated":
            raise ApiError(400, "this server does not write gated: ask for always or never", "not_allowed", "write")
        if asked.write is None or asked.write == mode or (asked.write == "always" and mode is None):
            return state
        if asked.write != "gated":
            return WritePolicy(asked.write).start(state)
        if self.gated is None:
            raise ApiError(400, "this model has no write policy: run titans calibrate on it", "not_calibrated", "write")
        return self.gated.start(state)


def _left() -> ApiError:
    return ApiError(499, "the client left before its prompt was read", "cancelled")


async def _when(cancelled: asyncio.Event, request: EngineRequest) -> None:
    await cancelled.wait()
    request.cancelled = True
