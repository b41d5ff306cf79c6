"""Workers side by side: each in its own process, one at work at a time, in turns."""

from __future__ import annotations

import contextlib
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

THREADS = 2
PATIENCE = {"build": 900, "memory": 120, "time": 120}  # seconds that a worker may take for an answer
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
HERE = Path(__file__).parent


class Failed(Exception):
    """A worker did not start, broke off or took too long; the message says which."""


class Measured(NamedTuple):
    """A worker: median seconds of wall clock and of CPU, growth of its memory in bytes, and facts about it."""

    wall: float
    cpu: float
    bytes: float | None
    facts: dict[str, float]


class Worker:
    """A worker process.

    Args:
        subject: module of `subjects`.
        python: the interpreter to run it with.
    """

    def __init__(self, subject: str, python: Path | str = sys.executable) -> None:
        self.subject = subject
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # not a pipe, which a chatty library would fill
        self.process = subprocess.Popen(
            [str(python), str(HERE / "worker.py"), subject, str(THREADS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True, cwd=HERE,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(HERE)},
        )  # fmt: skip

    def ask(self, command: str, **setting: Any) -> Any:
        """Send a command and wait for its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([command, setting]) + "\n")
            self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], PATIENCE[command])[0]:
            raise Failed(f"{self.subject}: no answer in {PATIENCE[command]} s")
        answer = self.process.stdout.readline()
        if not answer:
            self.said.seek(0)
            said = self.said.read().strip().splitlines()
            raise Failed(f"{self.subject}: {said[-1] if said else 'ended without a word'}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()
        self.said.close()


@contextlib.contextmanager
def workers(subjects: dict[str, Path | str]) -> Iterator[dict[str, Worker]]:
    """Start a worker for each subject; ended when the block ends."""
    started = {name: Worker(name, python) for name, python in subjects.items()}
    try:
        yield started
    finally:
        for one in started.values():
            one.close()


def race(subjects: dict[str, Path | str], settings: dict[str, dict[str, Any]], rounds: int) -> dict[str, Measured]:
    """Measure in turns A B A B ...

    Args:
        subjects: the workers, and the Python of each.
        settings: what each builds.
        rounds: runs that count of each, after the first, in which the growth of memory is measured.

    Raises:
        Failed: a worker broke off.
    """
    with workers(subjects) as field:
        facts = {name: one.ask("build", **settings[name]) for name, one in field.items()}
        growth = {name: one.ask("memory")["bytes"] for name, one in field.items()}
        times: dict[str, list[dict[str, float]]] = {name: [] for name in field}
        for _ in range(rounds):
            for name, one in field.items():
                times[name].append(one.ask("time"))
    return {
        name: Measured(
            statistics.median(t["wall"] for t in runs), statistics.median(t["cpu"] for t in runs), growth[name],
            facts[name],
        )
        for name, runs in times.items()
    }  # fmt: skip
