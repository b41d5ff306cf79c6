"""`titans evaluate forecasting`: errors of forecasts by the protocol of the field."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from titans.cli._arguments import check_folder, whole_numbers, words
from titans.cli._progress import log_line, show_progress

if TYPE_CHECKING:
    from titans.evaluation.forecasting_result import ForecastingResult


def forecasting(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET.csv", help="A column of time, and columns of numbers.")],
    protocol: Annotated[
        str, typer.Option(metavar="ett|custom", help="ETT's months for train, validation and test, or 70/10/20 %.")
    ] = "custom",
    horizons: Annotated[str, typer.Option(metavar="H,H,...", help="Steps to forecast.")] = "96,192,336,720",
    look_back: Annotated[int, typer.Option(min=1, help="Steps that a forecast is made from.")] = 96,
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="Titans: lmm, mac, mag, mal. Twins without memory: swa, none. Any other variant of `titans info "
            "--preset`, such as gated-deltanet. Baselines: dlinear, repeat, seasonal-naive.",
            show_default="lmm and the baselines",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Train each so many times.")] = 3,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most.", show_default="the model's")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="At the start.", show_default="the model's")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Windows.", show_default="the model's")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="About how long all may take; trainings get equal shares.", show_default="any")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Runs and result.", show_default="forecasting-DATASET")
    ] = None,
) -> None:
    """Errors of forecasts by the protocol of the field: MSE and MAE in scaled space over all test windows.

    Each run (model, horizon, seed) is kept in the folder as soon as it is done: after Ctrl-C the same command goes
    on from there, and more models, horizons or seeds can be added later. The folder gets forecasting.json and a plot.

    [bold]Example:[/] titans evaluate forecasting ETTh1.csv --protocol ett --models lmm,none,dlinear --seeds 1
    """
    from titans.evaluation.forecasting_run import load

    evaluation = load(dataset, protocol, context_length=look_back, horizons=whole_numbers(horizons, "horizons"))
    folder = Path(f"forecasting-{evaluation.benchmark.name}") if out is None else out
    check_folder(folder)
    with show_progress(folder) as progress:
        result = evaluation.measure(
            folder,
            evaluation.models() if models is None else words(models),
            seeds,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            minutes=minutes,
            finished=log_line,
            progress=progress,
        )
    _print_errors(result)
    typer.echo(result.describe())
    typer.echo(f"written: {folder / 'forecasting.json'}, {folder / 'forecasting.png'}")


def _print_errors(result: ForecastingResult) -> None:
    """Two lines for each model; the mean over the horizons with its deviation over the seeds."""
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "", *(f"{horizon:,}" for horizon in result.horizons), "mean", title="errors by horizon")
    for column in table.columns[2:]:
        column.justify = "right"
    for model in result.models:
        means = [result.mean(model, horizon) for horizon in (*result.horizons, None)]
        for error in ("mse", "mae"):
            cells = [f"{getattr(mean, error):.4f}" for mean in means]
            if means[-1] is not None and means[-1].seeds > 1:
                cells[-1] += f" ± {getattr(means[-1], f'{error}_deviation'):.4f}"
            table.add_row(model if error == "mse" else "", error.upper(), *cells)
        table.add_section()
    Console().print(table)
