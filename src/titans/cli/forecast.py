"""`titans forecast`: from a CSV file to a report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from titans.cli._progress import show_progress
from titans.errors import TitansError


def forecast(
    table: Annotated[Path, typer.Argument(metavar="CSV", help="A column of time, and columns of numbers.")],
    horizon: Annotated[int, typer.Option(min=1, help="Steps to forecast.")] = 96,
    out: Annotated[Path, typer.Option(metavar="HTML", help="The report.")] = Path("forecast.html"),
    csv: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Write the forecasts as numbers here.", show_default=False)
    ] = None,
    time_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of time.", show_default="the one that looks it")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="What to forecast.", show_default="all numbers")
    ] = None,
    context_length: Annotated[
        int | None, typer.Option(min=4, help="Steps of a window.", show_default="by horizon and season")
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Most time to train; reading and drawing come on top, some seconds.")
    ] = 1.2,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same forecasts, if time does not end it.")] = 0,
    variant: Annotated[
        str, typer.Option(metavar="lmm|mac|mag|mal", help="How the memory is built in; or a twin, such as none.")
    ] = "lmm",
) -> None:
    """Forecast the columns of a CSV file, with intervals, and say how good the forecasts are.

    The last rows are held back first, forecast and compared with what came, beside seasonal-naive forecasts (the last
    season again); where these are better, the report says so. What had to be cleaned in the file is said, too. About
    two minutes for 10,000 rows of 7 columns on 2 cores.

    [bold]Example:[/] titans forecast sales.csv --horizon 28 --columns north,south --out report.html --csv next.csv
    """
    if not math.isfinite(minutes):
        raise TitansError(f"minutes is {minutes}, expected a finite number")
    from titans.forecasting.forecast_page import check_targets, write, write_csv

    check_targets(out, csv, source=table)  # what cannot be written is known before the work is done
    from titans.forecasting.forecast_report import forecast_table
    from titans.forecasting.frames import read_csv

    read = read_csv(table, time_column)
    for note in read.notes:
        typer.echo(f"note: {note}")
    with show_progress() as progress:
        report = forecast_table(
            read,
            horizon,
            columns=None if columns is None else _names(columns, list(read.frame.columns)),
            context_length=context_length,
            variant=variant,
            seed=seed,
            seconds=60 * minutes,
            progress=progress,
        )
        progress(1.0, "drawing")
        write(out, report, table.name)
    if csv is not None:
        write_csv(csv, report)
    for note in report.table.notes[len(read.notes) :]:
        typer.echo(f"note: {note}")
    for sentence in report.verdict():
        typer.echo(sentence)
    typer.echo(f"written: {', '.join(str(path) for path in (out, csv) if path is not None)}")


def _names(listed: str, known: list[str]) -> list[str]:
    """Names between commas, or one name that has commas in it."""
    return [listed] if listed in known else [name.strip() for name in listed.split(",")]
