"""What was measured, as tables, JSON and pictures."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from titans import plots
from titans.io import atomic

Rows = list[dict[str, Any]]


def machine() -> dict[str, str]:
    """Describe the machine."""
    names = [line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")]
    return {
        "processor": f"{os.cpu_count()} x {names[0] if names else platform.processor() or 'unknown'}",
        "software": f"{platform.system()}, Python {platform.python_version()}, torch {torch.__version__}",
    }


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def table(title: str, rows: Rows) -> None:
    """Print rows of equal keys."""
    if not rows:
        return
    shown = Table(title=title, title_justify="left")
    names = max((list(row) for row in rows), key=len)  # a row that failed has fewer
    for name in names:
        shown.add_column(name, justify="right" if not isinstance(rows[0].get(name), str) else "left")
    for row in rows:
        shown.add_row(*(_text(row[name]) if name in row else "" for name in names))
    Console(width=140).print(shown)


def _text(x: Any) -> str:
    if isinstance(x, float):
        return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"
    return f"{x:,}" if isinstance(x, int) and not isinstance(x, bool) else str(x)


def save(results: dict[str, Any], folder: Path) -> None:
    """Write the JSON file and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_json(folder / "results.json", results)
    growth: Rows = results.get("growth", [])
    if growth:
        plots.save(_lines(growth, "tokens", "wall s", "mixer", "seconds, forward and backward"), folder / "time.png")
        if all(row["peak MB"] is not None for row in growth):
            plots.save(_lines(growth, "tokens", "peak MB", "mixer", "memory, MB"), folder / "memory.png")
    generation: Rows = results.get("generation", [])
    if generation:
        drawn = _lines(generation, "context", "ms per token", "model", "ms per generated token")
        plots.save(drawn, folder / "generation.png")


def _lines(rows: Rows, x: str, y: str, name: str, label: str) -> Figure:
    drawn, (axes,) = plots.figure(size=(7, 4))
    for number, one in enumerate(dict.fromkeys(row[name] for row in rows)):
        points = [(row[x], row[y]) for row in rows if row[name] == one]
        plots.line(axes, *zip(*points, strict=True), number, label=one)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({row[x] for row in rows})
    axes.set_xticks(ticks, [plots.short(tick) for tick in ticks])
    axes.set(xlabel="tokens", ylabel=label)
    plots.legend(axes)
    return drawn
