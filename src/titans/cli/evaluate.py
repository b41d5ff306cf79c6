"""`titans evaluate`: one subcommand per benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from titans.cli._loading import Write, load_for_inference, load_write_policy, shares
from titans.cli._progress import progress_bar, progress_counter
from titans.errors import TitansError

if TYPE_CHECKING:
    from titans.evaluation.forecasting import ForecastingResult
    from titans.evaluation.perplexity import PerplexityResult

app = typer.Typer(no_args_is_help=True, help="Measure a model: one subcommand per benchmark.")


@app.callback()
def evaluate() -> None:
    """Measure a model: one subcommand per benchmark."""


@app.command()
def perplexity(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder or hub id.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Files, folders, globs or hub ids.")],
    text_field: Annotated[str, typer.Option(help="The jsonl key or column with the text.")] = "text",
    piece_length: Annotated[int, typer.Option(min=1, help="Tokens of one forward pass.")] = 2048,
    write: Write = "always",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write perplexity.json and a plot by position here.")
    ] = None,
) -> None:
    """Perplexity and bits per byte, and the loss by position in the document.

    Each document is streamed with the memory carried from its start: where the loss goes on falling beyond the
    attention window, the memory is being used.

    [bold]Example:[/] titans evaluate perplexity runs/tiny-cpu "books/**/*.txt" --out report
    """
    from titans.data.corpora import documents, local_files

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made is known before the work is done
    for source in data:
        local_files(source)  # a misspelt path is known before the model is loaded
    policy = load_write_policy(model, write)
    from titans.evaluation import perplexity as measure

    language_model, tokenizer = load_for_inference(model)
    with progress_counter("tokens") as progress:
        task = progress.add_task("tokens", total=None)
        result = measure(
            language_model,
            tokenizer,
            documents(data, text_field=text_field),
            piece_length=piece_length,
            policy=policy,
            progress=lambda count: progress.update(task, advance=count),
        )
    _print(result)
    if out is not None:
        result.save(out)
        typer.echo(f"written: {out / 'perplexity.json'}, {out / 'perplexity.png'}")


def _print(result: PerplexityResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("tokens before", "predicted", "nats/token", title="loss by position in the document")
    for column in table.columns:
        column.justify = "right"
    for bucket in result.positions:
        table.add_row(f"{bucket.first:,} to {bucket.last:,}", f"{bucket.tokens:,}", f"{bucket.loss:.4f}")
    Console().print(table)
    typer.echo(f"documents      {result.documents:,}")
    typer.echo(f"tokens         {result.tokens:,}")
    typer.echo(f"loss           {result.loss:.4f} nats/token")
    typer.echo(f"perplexity     {result.perplexity:.4f}")
    typer.echo(f"bits per byte  {result.bits_per_byte:.4f}")
    if result.writing is not None and result.writing.layers:
        typer.echo(f"memory         {shares(result.writing)}")


@app.command()
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
            help="Titans: lmm, mac, mag, mal. Twins: swa, none, and memories that move linearly: gla, gated-deltanet, "
            "deltanet, retnet, mamba, mamba2. Baselines: dlinear, repeat, seasonal-naive.",
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

    evaluation = load(dataset, protocol, context_length=look_back, horizons=_numbers(horizons))
    folder = Path(f"forecasting-{evaluation.benchmark.name}") if out is None else out
    with progress_bar() as progress:
        task = progress.add_task("", total=1.0)
        result = evaluation.run(
            folder,
            evaluation.models() if models is None else _words(models),
            seeds,
            epochs=epochs,
            learning_rate=learning_rate,
            batch_size=batch_size,
            minutes=minutes,
            progress=lambda done, doing: progress.update(task, completed=done, description=doing),
        )
    _print_errors(result)
    typer.echo(result.describe())
    typer.echo(f"written: {folder / 'forecasting.json'}, {folder / 'forecasting.png'}")


def _words(listed: str) -> list[str]:
    return listed.replace(",", " ").split()


def _numbers(listed: str) -> list[int]:
    try:
        return [int(word) for word in _words(listed)]
    except ValueError:
        raise TitansError(f'the horizons are "{listed}", expected whole numbers such as 96,192') from None


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
