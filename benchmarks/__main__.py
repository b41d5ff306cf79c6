"""`python benchmarks`: speed and memory side by side with other implementations, with attention, with the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import contests
import peers
import report
import typer
from measure import ENVIRONMENT, THREADS, Failed
from rich.console import Console

HERE = Path(__file__).parent
RECORD = HERE / "record.json"  # what bench-quick compares with
FULL = {"rounds": 5, "chunks": (16, 64, 128, 256), "lengths": tuple(1024 * 2**i for i in range(7)),
        "contexts": (1024, 16 * 1024, 128 * 1024)}  # fmt: skip
CONTESTS = ("layer", "limit", "growth", "training", "generation", "import")
console = Console()


def bench(
    only: Annotated[
        list[str] | None, typer.Option(help=f"Contests to run: {', '.join(CONTESTS)}. Default: all.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.json and the pictures.")] = Path("bench-report"),
    quick: Annotated[
        bool, typer.Option(help="Only against the reference and the machine; fails when slower than recorded.")
    ] = False,
    record: Annotated[bool, typer.Option(help="With --quick: write down the ratios instead of comparing.")] = False,
) -> None:
    """Measure: medians of CPU and wall seconds, peak memory growth, ratios; workers take turns."""
    chosen = list(only or CONTESTS)
    if unknown := [name for name in chosen if name not in CONTESTS]:
        console.print(f"unknown contest {unknown[0]!r}: choose among {', '.join(CONTESTS)}")
        raise typer.Exit(2)
    console.print(f"threads: {THREADS}; " + ", ".join(f"{k}={v}" for k, v in ENVIRONMENT.items()))
    checks = contests.check()
    report.table("Against the token-by-token reference (float64)", checks)
    if not all(row["right"] for row in checks):
        console.print("The result is wrong, so no speed is measured.")
        raise typer.Exit(1)
    if quick:
        _quick(record)
        return
    results: dict[str, Any] = {"machine": report.machine(), "settings": ENVIRONMENT, "check": checks}
    plan = _plan(chosen, results)
    for name in chosen:
        console.print(f"measuring: {name}")
        results[name] = []
        try:
            for row in import_time() if name == "import" else getattr(contests, name)(plan):
                results[name].append(row)
                report.save(results, out)  # after each row: what is measured is not lost
        except Failed as error:
            console.print(f"{name}: {error}")
        report.table(name, results[name])
    console.print(f"written: {out}/results.json")


def _plan(chosen: list[str], results: dict[str, Any]) -> contests.Plan:
    pythons = {}
    if {"layer", "training"} & set(chosen):
        results["peers"] = {}
        for name in peers.PACKAGES:
            console.print(f"installing {name} into {peers.PLACE.name}/ (minutes, the first time)")
            python, said = peers.install(name)
            if python is not None and name in contests.PEERS:
                pythons[name] = python
            elif python is not None:
                said += "; has nothing that can be compared, see docs/lab-notes/benchmarks.md"
            results["peers"][name] = said
            console.print(f"{name}: {said}")
    return contests.Plan(**FULL, pythons=pythons)  # type: ignore[arg-type]


def import_time(rounds: int = 7) -> list[dict[str, Any]]:
    """What `import titans` adds to `import torch`, in processes of their own, in turns."""
    times: dict[str, list[float]] = {"import torch": [], "import torch, titans": []}
    for _ in range(rounds):
        for code, found in times.items():
            command = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
            done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
            found.append(float(done.stdout))
    alone, both = (sorted(x)[rounds // 2] for x in times.values())
    return [{"import torch, s": alone, "with titans, s": both, "added, s": both - alone}]


def _quick(record: bool) -> None:
    """Compare shares of the machine's rate with those on record."""
    plan = contests.Plan(rounds=5, chunks=(16, 64), lengths=(), contexts=(), pythons={})
    rows = list(contests.limit(plan))
    report.table("Share of the machine's rate", rows)
    shares = {f"chunk {row['chunk']}, {row['pass']}": row["share of the limit"] for row in rows}
    if record:
        RECORD.write_text(json.dumps(shares, indent=1) + "\n")
        return
    known = json.loads(RECORD.read_text())
    slow = [name for name, share in shares.items() if share < 2 / 3 * known[name]]
    for name in slow:
        console.print(f"{name}: {shares[name]:.2f} of the limit, {known[name]:.2f} on record")
    if slow:
        raise typer.Exit(1)
    console.print("No slower than two thirds of what is on record.")


if __name__ == "__main__":
    typer.run(bench)
