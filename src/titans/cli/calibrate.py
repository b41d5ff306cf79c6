"""`titans calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from titans.cli._arguments import make_results_folder
from titans.cli._loading import load_for_inference
from titans.cli._progress import show_progress
from titans.cli._tables import print_table
from titans.errors import TitansError

if TYPE_CHECKING:
    from titans.evaluation.calibration import Calibration


def calibrate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder; the policy is written into it.")],
    data: Annotated[list[str], typer.Argument(metavar="DATA...", help="Files, folders, globs or hub ids.")],
    text_field: Annotated[str, typer.Option(help="The jsonl key or column with the text.")] = "text",
    percentile: Annotated[
        float, typer.Option(min=1.0, max=99.0, help="Of the smoothed surprise: what lies above is written.")
    ] = 70.0,
    tokens: Annotated[int, typer.Option(min=256, help="Read twice so many tokens of the data.")] = 16_384,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write calibration.json and a picture of the surprise here.")
    ] = None,
) -> None:
    """Find out what surprises a model, so that its memory can write that only.

    Half of the tokens set the thresholds of each memory layer, the other half how fast it forgets. The policy goes
    into MODEL/write_policy.json, where --write gated finds it; which of always, gated and never had the lowest
    perplexity is the default of --write from then on. Use text like that which the model will read, with facts and
    questions about them if it is to remember facts.

    [bold]Example:[/] titans calibrate runs/tiny-cpu "books/**/*.txt"
    """
    from titans.data.corpora import documents, local_files

    if not model.is_dir():
        raise TitansError(f'there is no model folder "{model}": the policy is written into it, so a hub id will not do')
    make_results_folder(out)
    for source in data:
        local_files(source)  # a misspelt path is known before the model is loaded
    from titans.evaluation.calibration import calibrate as measure

    language_model, tokenizer = load_for_inference(str(model))
    with show_progress() as progress:
        found = measure(
            language_model,
            tokenizer,
            documents(data, text_field=text_field),
            percentile=percentile,
            tokens=tokens,
            progress=progress,
        )
    _print(found)
    typer.echo(f"written: {found.policy.save(model, found.best)}")
    if out is not None:
        found.save(out)
        typer.echo(f"written: {out / 'calibration.json'}, {out / 'surprise.png'}")


def _print(found: Calibration) -> None:
    rows, always = [["write", "perplexity", "speed", "written", "skipped", "dropped"]], found.readings[0]
    for reading in found.readings:
        speed = f"{reading.tokens_per_second / always.tokens_per_second:.2f} x"
        shares = [f"{share:.1%}" for share in (reading.written, reading.skipped, reading.dropped)]
        rows.append([reading.name, f"{reading.perplexity:.4f}", speed, *shares])
    print_table(rows)
    rounds = ", ".join(f"{share:.1%}" for share in found.rounds)
    typer.echo(f"thresholds     {', '.join(f'{x:.4g}' for x in found.policy.threshold)} (written by round: {rounds})")
    typer.echo(f"decay          {found.policy.decay:.0e}")
    typer.echo(f"best           {found.best}: the default of --write for this model from now on")
    if found.best == "never":
        typer.echo("               its memories take nothing in then; to have them remember, give --write always")
