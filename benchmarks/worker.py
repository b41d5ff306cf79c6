"""One implementation in a process of its own: builds what it is told to and runs it when it is told to.

Runs under the implementation's own Python, so it imports nothing but torch and one module of `subjects`. Commands and
answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def timed(run: Callable[[], Any]) -> dict[str, float]:
    """Run once; returns seconds of wall clock and of all threads' CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def peak_growth(run: Callable[[], Any]) -> dict[str, float | None]:
    """Run once; returns by how many bytes the process grew at most. None where the system does not tell (not Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        run()
        return {"bytes": None}
    before = _status("VmRSS")
    run()
    return {"bytes": _status("VmHWM") - before}


def _status(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return float(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {name}")


def main() -> None:
    """Serve commands until the input ends."""
    subject, threads = sys.argv[1], int(sys.argv[2])
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # what libraries print must not mix with answers
    os.dup2(2, 1)
    torch.set_num_threads(threads)
    module = importlib.import_module(f"subjects.{subject}")
    run: Callable[[], Any] = lambda: None  # noqa: E731
    for line in sys.stdin:
        command, setting = json.loads(line)
        answer: Any = None
        if command == "build":
            torch.manual_seed(0)
            run, answer = module.build(**setting)
        elif command == "time":
            answer = timed(run)
        elif command == "memory":
            answer = peak_growth(run)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
