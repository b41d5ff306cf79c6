"""A comparison on one page: table, plots, and every number."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import math
from pathlib import Path
from typing import Any

from titans.evaluation.comparison.result import ComparisonResult, Mean, ModelResult
from titans.io import atomic

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1d2433; }
table { border-collapse: collapse; } img { max-width: 100%; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #d5d9e2; text-align: right; }
th:first-child, td:first-child { text-align: left; }
"""

STYLES = ("o-", "s--", "^:")  # markers and lines of the first ten models, of the next ten, and so on


def write_report(result: ComparisonResult, folder: Path) -> None:
    """Write `results.json`, `table.md`, `plots.png` and `report.html`, each whole or not at all.

    Args:
        result: what was found.
        folder: it exists.
    """
    plots = _plots(result)
    atomic.write_json(folder / "results.json", as_json(result))
    atomic.write(folder / "plots.png", plots)
    atomic.write(folder / "table.md", markdown(result).encode())
    atomic.write(folder / "report.html", _page(result, plots).encode())


def table(result: ComparisonResult) -> list[list[str]]:
    """Return the table's rows, the head first."""
    head = ["model", "parameters", "state, bytes", "learning rate", *result.lengths, "tokens/s", "diverged"]
    return [head, *(_row(model, result) for model in result.models)]


def markdown(result: ComparisonResult) -> str:
    """Return the table with what it needs to be read."""
    head, *rows = table(result)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{describe(result)}\n"


def describe(result: ComparisonResult) -> str:
    """Say in one paragraph what was measured how."""
    task = ", ".join(f"{key} {value}" for key, value in result.task.items() if key != "name")
    seeds, rates = (len(result.models[0].runs), len(result.models[0].sweep))
    train = ", ".join(result.train) if len(result.train) < 9 else f"{result.train[0]} … {result.train[-1]}"
    return (
        f"{result.task['name']}{f' ({task})' if task else ''}: {result.measure} by length (tokens / pairs), mean and "
        f"95 % interval (Student's t) over {seeds} seed{'s' * (seeds > 1)}"
        f"{'' if result.kind == 'text' else f'; chance {result.chance:.3g}'}. Every model: {result.budget['steps']:,} "
        f"steps of {result.budget['batch']} sequences at {train}, the same for all; best of {rates} learning "
        f"rate{'s' * (rates > 1)} by validation loss on the first seed. Parameters do not count the embeddings and the "
        "output head. Diverged runs are left out of the means."
    )


def as_json(result: ComparisonResult) -> dict[str, Any]:
    """Return all numbers."""
    content = dataclasses.asdict(result) | {"measure": result.measure, "description": describe(result)}
    for model, written in zip(result.models, content["models"], strict=True):
        written["learning_rate"] = model.runs[0].learning_rate
        written["diverged"] = model.diverged
        written["means"] = {size: _interval(model.mean(size)) for size in result.lengths}
        written["final_means"] = {size: _interval(model.final(size)) for size in result.lengths}
        for run in (*written["sweep"], *written["runs"]):
            if run["diverged"] is not None:
                run["validation_loss"] = None  # JSON has no infinity
    return content


def _interval(mean: Mean | None) -> dict[str, Any] | None:
    return None if mean is None else dataclasses.asdict(mean)


def _row(model: ModelResult, result: ComparisonResult) -> list[str]:
    best, alive = model.runs[0], [run for run in model.runs if run.diverged is None]
    state = alive[0].state_bytes if alive else None
    speeds = [run.tokens_per_second for run in alive if run.tokens_per_second is not None]
    return [
        model.name,
        f"{model.parameters:,}",
        "grows" if alive and state is None else "" if state is None else f"{state:,}",
        f"{best.learning_rate:g}",
        *(_cell(model.mean(size), result.kind) for size in result.lengths),
        f"{sum(speeds) / len(speeds):,.0f}" if speeds else "",
        f"{model.diverged} of {len(model.runs)}" if model.diverged else "",
    ]


def _cell(mean: Mean | None, kind: str) -> str:
    if mean is None:
        return "diverged"
    scale, digits = (1, 3) if kind == "text" else (100, 1)
    spread = "" if mean.half_width is None else f" ± {scale * mean.half_width:.{digits}f}"
    return f"{scale * mean.mean:.{digits}f}{spread}{'' if kind == 'text' else ' %'}"


def _plots(result: ComparisonResult) -> bytes:
    """Draw values by length, training losses, and the sweep of learning rates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.6), layout="constrained")
    values, losses, sweep = figure.subplots(1, 3)
    for number, model in enumerate(result.models):
        colour, style = f"C{number % 10}", STYLES[number // 10 % len(STYLES)]
        means = [(size, mean) for size in result.lengths if (mean := model.mean(size)) is not None]
        error = [mean.half_width or 0 for _, mean in means]
        heights = [mean.mean for _, mean in means]
        sizes = [size for size, _ in means]
        values.plot(sizes, heights, style, color=colour, label=model.name)
        values.errorbar(sizes, heights, error, fmt="none", capsize=3, color=colour, alpha=0.3)
        for run in model.runs:
            losses.plot(*([point[axis] for point in run.curve] for axis in (0, 1)), style[1:], color=colour, alpha=0.7)
        tried = [run for run in model.sweep if math.isfinite(run.validation_loss)]
        rates = [run.learning_rate for run in tried]
        sweep.plot(rates, [run.validation_loss for run in tried], style, color=colour)
    if result.kind != "text":
        values.axhline(result.chance, color="#777777", linestyle=":")
        values.set_ylim(-0.02, 1.02)
    sweep.set_xscale("log")
    values.set(xlabel="tokens (/ pairs)", ylabel=result.measure, title=f"{result.task['name']}: test")
    losses.set(xlabel="steps", ylabel="nats per answer", title="training")
    sweep.set(xlabel="learning rate", ylabel="nats per answer", title="validation, first seed")
    for axes in (values, losses, sweep):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _page(result: ComparisonResult, plots: bytes) -> str:
    head, *rows = table(result)
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    title = html.escape(f"Comparison on {result.task['name']}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>
<p>{html.escape(describe(result))}</p><table><tr>{names}</tr>{cells}</table>
<p><img alt="plots" src="data:image/png;base64,{base64.b64encode(plots).decode()}"></p></body></html>
"""
