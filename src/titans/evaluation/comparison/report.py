"""A comparison on one page: table, plots, and every number."""

from __future__ import annotations

import dataclasses
import html
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans import html_page, plots
from titans.data.synthetic.task import shorten
from titans.evaluation.comparison.result import ComparisonResult, ModelResult
from titans.evaluation.intervals import Mean
from titans.io import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(result: ComparisonResult, folder: Path) -> None:
    """Write `results.json`, `table.md`, `plots.png` and `report.html` into a folder, each whole or not at all."""
    atomic.write_json(folder / "results.json", as_json(result))
    image = html_page.image(plots.save(_plot(result), folder / "plots.png"), "plots")
    atomic.write(folder / "table.md", markdown(result).encode())
    head, *rows = table(result)
    body = [f"<p>{html.escape(describe(result))}</p>", html_page.table(rows, head), f"<p>{image}</p>"]
    page = html_page.page(f"Comparison on {result.task['name']}", body, "body { max-width: 80rem; }")
    atomic.write(folder / "report.html", page.encode())


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
    return (
        f"{result.task['name']}{f' ({task})' if task else ''}: {result.measure} by length (tokens / pairs), mean and "
        f"95 % interval (Student's t) over {seeds} seed{'s' * (seeds > 1)}"
        f"{'' if result.kind == 'text' else f'; chance {result.chance:.3g}'}. Every model: {result.budget['steps']:,} "
        f"steps of {result.budget['batch']} sequences at {shorten(result.train)}, the same for all; best of {rates} "
        f"learning rate{'s' * (rates > 1)} by validation loss on the first seed. Parameters do not count the "
        "embeddings and the output head. Diverged runs are left out of the means."
    )


def as_json(result: ComparisonResult) -> dict[str, Any]:
    """Return all numbers."""
    content = dataclasses.asdict(result) | {"measure": result.measure, "description": describe(result)}
    for model, written in zip(result.models, content["models"], strict=True):
        written["learning_rate"] = model.runs[0].learning_rate
        written["diverged"] = model.diverged
        for name, mean in (("means", model.mean), ("final_means", model.final)):
            written[name] = {size: (found := mean(size)) and dataclasses.asdict(found) for size in result.lengths}
        for run in (*written["sweep"], *written["runs"]):
            if run["diverged"] is not None:
                run["validation_loss"] = None  # JSON has no infinity
    return content


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


def _plot(result: ComparisonResult) -> Figure:
    """Draw values by length, training losses, and the sweep of learning rates."""
    drawn, (values, losses, sweep) = plots.figure(3, size=(14, 4.6))
    for number, model in enumerate(result.models):
        means = {size: mean for size in result.lengths if (mean := model.mean(size)) is not None}
        ends = [[m.mean + sign * (m.half_width or 0) for m in means.values()] for sign in (-1, 1)]
        plots.line(
            values, means, [m.mean for m in means.values()], number, interval=(ends[0], ends[1]), label=model.name,
            ecolor=f"{plots.color(number)}4d",
        )  # fmt: skip
        for run in model.runs:
            steps, nats = ([point[axis] for point in run.curve] for axis in (0, 1))
            plots.line(losses, steps, nats, number, markers=False, alpha=0.7)
        tried = [run for run in model.sweep if math.isfinite(run.validation_loss)]
        plots.line(sweep, [run.learning_rate for run in tried], [run.validation_loss for run in tried], number)
    if result.kind != "text":
        values.axhline(result.chance, color=plots.MUTED, linestyle=":")
        values.set_ylim(-0.02, 1.02)
    sweep.set_xscale("log")
    values.set(xlabel="tokens (/ pairs)", ylabel=result.measure, title=f"{result.task['name']}: test")
    losses.set(xlabel="steps", ylabel="nats per answer", title="training")
    sweep.set(xlabel="learning rate", ylabel="nats per answer", title="validation, first seed")
    plots.legend(drawn, ncols=6)
    return drawn
