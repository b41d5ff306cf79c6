"""Several pieces of work at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from multiprocessing.managers import SyncManager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def call_in_processes(
    function: Callable[..., T],
    calls: Iterable[tuple[Any, ...]],
    processes: int,
    told: Callable[[Any], None],
    threads: int = 1,
) -> list[T]:
    """Call a function several times, each time in a new process, which ends when this one does.

    The function, of a module, is given after its arguments what takes messages; `told` is called here with each. What
    a call raises is raised here, and breaks off all others, as Ctrl-C does. The results are in the order of the calls.
    """
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    manager = SyncManager(ctx=context)
    manager.start(_end_with_parent)
    with manager, ProcessPoolExecutor(processes, context, _start, (threads,), max_tasks_per_child=1) as pool:
        messages = manager.Queue()
        jobs = [pool.submit(function, *arguments, messages.put) for arguments in calls]
        try:
            waiting = set(jobs)
            while waiting:
                done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
                while not messages.empty():
                    told(messages.get())
                for job in done:
                    job.result()  # raises what went wrong there
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        return [job.result() for job in jobs]


def _start(threads: int) -> None:
    torch.set_num_threads(threads)
    _end_with_parent()


def _end_with_parent() -> None:
    """Have this process end when its parent does, however that ends: nobody waits for what is done here."""
    parent = multiprocessing.parent_process()

    def wait_for_parent() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
