"""`titans compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titans.cli._arguments import make_folder
from titans.cli._progress import log_line, progress_bar, resumable


def compare(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="The comparison: see recipes/compare-*.yaml.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Replace values of the recipe; dots between the levels."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go. Default: runs/ and the recipe's name.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Models to train at a time, each in a process of its own.")] = 1,
) -> None:
    """Train several models under one budget, equally tuned, and write one table with means and intervals.

    Sections of a recipe: [bold]task[/] (its name and options, or text), [bold]train[/] and [bold]lengths[/] (sizes),
    [bold]budget[/] (steps, batch), [bold]learning_rates[/] (each is tried on the first seed), [bold]seeds[/],
    [bold]model[/] (fields of all), [bold]models[/] (a name and fields each), [bold]parameters[/] (fit them to it).

    Every finished run is kept in DIR/runs: after Ctrl-C or a crash, the same command goes on where it stopped.

    [bold]Example:[/] titans compare recipes/compare-mqar-tiny.yaml --out runs/mqar
    """
    from titans.evaluation.comparison import compare as run
    from titans.evaluation.comparison import load_comparison
    from titans.evaluation.comparison.report import describe, table

    comparison = load_comparison(recipe, overrides or [])
    folder = out or Path("runs") / recipe.stem
    make_folder(folder)
    with resumable(folder), progress_bar() as progress:
        task = progress.add_task("", total=1.0)
        result = run(
            comparison,
            folder,
            device=best_device(),
            jobs=jobs,
            finished=log_line,
            progress=lambda share, what: progress.update(task, completed=share, description=what),
        )
    print_table(table(result))
    typer.echo(describe(result))
    typer.echo(f"written: {folder / 'report.html'}, table.md, results.json, plots.png")


def best_device() -> str:
    """Return where to train: the accelerator of this machine, or the CPU."""
    from titans.training.pretrained import find_device

    return find_device().type


def print_table(rows: list[list[str]], title: str | None = None) -> None:
    """Print rows of cells, the head first."""
    from rich.console import Console
    from rich.table import Table

    head, *body = rows
    printed = Table(title=title)
    for number, name in enumerate(head):
        printed.add_column(name, justify="right" if number else "left")
    for row in body:
        printed.add_row(*row)
    console = Console()
    needed = Console(width=500).measure(printed).maximum
    console.width = max(console.width, needed)  # rather wrapped by the terminal than cut
    console.print(printed)
