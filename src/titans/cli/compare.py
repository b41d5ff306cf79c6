"""`titans compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titans.cli._arguments import Overrides, make_results_folder
from titans.cli._loading import best_device
from titans.cli._progress import log_line, show_progress
from titans.cli._tables import print_table


def compare(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="The comparison: see recipes/compare-*.yaml.")],
    overrides: Overrides = None,
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
    from titans.evaluation import comparison
    from titans.evaluation.comparison.report import describe, table

    checked = comparison.load_comparison(recipe, overrides or [])
    folder = out or Path("runs") / recipe.stem
    make_results_folder(folder)
    with show_progress(folder) as progress:
        result = comparison.compare(
            checked,
            folder,
            device=best_device(),
            jobs=jobs,
            finished=log_line,
            progress=progress,
        )
    print_table(table(result))
    typer.echo(describe(result))
    typer.echo(f"written: {folder / 'report.html'}, table.md, results.json, plots.png")
