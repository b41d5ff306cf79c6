"""`titans evaluate`: one subcommand per benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from titans.cli._arguments import make_results_folder
from titans.cli._loading import AnyModel, Write, shares, silence_loading
from titans.cli._progress import progress_counter
from titans.cli._tables import print_table, save_result
from titans.cli.babilong import babilong
from titans.cli.evaluate_forecasting import forecasting
from titans.cli.language import lm
from titans.cli.ruler import ruler
from titans.cli.synthetic import recall, state
from titans.errors import TitansError

if TYPE_CHECKING:
    from titans.evaluation.perplexity import PerplexityResult

app = typer.Typer(no_args_is_help=True, help="Measure a model: one subcommand per benchmark.")


@app.callback()
def evaluate() -> None:
    """Measure a model: one subcommand per benchmark."""


@app.command()
def perplexity(
    model: AnyModel,
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Files, folders, globs or hub ids.")],
    text_field: Annotated[str, typer.Option(help="The jsonl key or column with the text.")] = "text",
    piece_length: Annotated[int, typer.Option(min=1, help="Tokens of one forward pass.")] = 2048,
    window: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens that a model other than Titans reads at a time; windows overlap by half.",
            show_default="all it has positions for",
        ),
    ] = None,
    write: Write = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write perplexity.json and a plot by position here.")
    ] = None,
) -> None:
    """Perplexity and bits per byte, and the loss by position in the document.

    Each document is streamed with the memory carried from its start: where the loss goes on falling beyond the
    attention window, the memory is being used. Other models than Titans read longer documents than they have positions
    for in windows, each from its start.

    [bold]Example:[/] titans evaluate perplexity runs/tiny-cpu "books/**/*.txt" --out report
    """
    from titans.data.corpora import documents, local_files

    make_results_folder(out)
    for source in data:
        local_files(source)  # a misspelt path is known before the model is loaded
    from titans.evaluation import perplexity as measure
    from titans.evaluation.streaming_lm import load_any_model

    silence_loading()
    language_model, tokenizer, policy = load_any_model(model, write=write)
    with progress_counter("tokens") as progress:
        task = progress.add_task("tokens", total=None)
        result = measure(
            language_model,
            tokenizer,
            documents(data, text_field=text_field),
            piece_length=piece_length,
            window=window,
            policy=policy,
            progress=lambda count: progress.update(task, advance=count),
        )
    _print(result)
    save_result(result, out, "perplexity")


def _print(result: PerplexityResult) -> None:
    rows = [["tokens before", "predicted", "nats/token"]]
    for bucket in result.positions:
        rows.append([f"{bucket.first:,} to {bucket.last:,}", f"{bucket.tokens:,}", f"{bucket.loss:.4f}"])
    print_table(rows, "loss by position in the document")
    typer.echo(f"documents      {result.documents:,}")
    typer.echo(f"tokens         {result.tokens:,}")
    typer.echo(f"loss           {result.loss:.4f} nats/token")
    typer.echo(f"perplexity     {result.perplexity:.4f}")
    typer.echo(f"bits per byte  {result.bits_per_byte:.4f}")
    if result.writing is not None and result.writing.layers:
        typer.echo(f"memory         {shares(result.writing)}")
    typer.echo(result.protocol)


app.command()(forecasting)
app.command()(recall)
app.command()(state)
app.command()(babilong)
app.command()(lm)
app.command()(ruler)


@app.command(hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def needle() -> None:
    """Say what the command is called now."""
    raise TitansError("titans evaluate needle is now titans evaluate ruler; its results are ruler.json and ruler.png")
