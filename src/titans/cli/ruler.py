"""`titans evaluate ruler`: the needles in haystacks of RULER, its variable tracking and its word counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from titans.cli._arguments import make_results_folder, whole_numbers, words
from titans.cli._loading import Write, silence_loading
from titans.cli._progress import log_line, show_progress
from titans.cli._tables import print_table, save_result

if TYPE_CHECKING:
    from titans.evaluation.ruler import RulerResult


def ruler(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder or hub id: a Titans model, or any causal language model.")
    ],
    tasks: Annotated[
        str,
        typer.Option(
            metavar="TASK,...",
            help="pk: a number in noise; n: a number in books; w: a uuid in books; niah_multikey_1, _2, _3, "
            "niah_multivalue, niah_multiquery: among several needles; vt: a chain of variables; cwe, fwe: the "
            "commonest words.",
        ),
    ] = "pk,n,w",
    lengths: Annotated[
        str,
        typer.Option(metavar="L,L,...", help="Tokens of text, question and answer; 2K is 2,048."),
    ] = "2048,4096,8192,16384",
    haystack: Annotated[
        list[str] | None,
        typer.Option(help="Books or essays for the tasks that need them: files, folders, globs; may be repeated."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Of each task and length; RULER takes 500.")] = 500,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first so many of them.")] = None,
    write: Write = None,
    seed: Annotated[int, typer.Option(min=0, help="Of keys, values and depths.")] = 0,
    device: Annotated[str | None, typer.Option(help="As cpu or cuda:0.", show_default="the best there is")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write ruler.json, ruler.png and every answer here, and go on from there."),
    ] = None,
) -> None:
    """Find facts in a long text: RULER's needles, variables and word counts, at any length.

    A Titans model reads in pieces, its memory carried along, in constant space; any other causal language model of
    Hugging Face reads with its key-value cache. With --out, each answer is kept as it comes: after Ctrl-C the same
    command goes on from there, and tasks, lengths and samples can be added later.

    [bold]Example:[/] titans evaluate ruler runs/tiny-cpu --haystack books --lengths 2048,4096 --limit 20 --out report
    """
    from titans.data.books import read_words
    from titans.data.ruler import canonical, needs_books
    from titans.evaluation.ruler import PROTOCOL, run_ruler
    from titans.evaluation.streaming_lm import load_streaming_lm

    asked = [canonical(word.lower()) for word in words(tasks)]
    sizes = whole_numbers(lengths, "lengths")
    make_results_folder(out)
    text = read_words(haystack) if haystack and any(map(needs_books, asked)) else None
    silence_loading()
    lm = load_streaming_lm(model, device, write)
    with show_progress(out) as progress:
        result = run_ruler(
            lm,
            asked,
            sizes,
            text,
            samples=samples if limit is None else min(samples, limit),
            seed=seed,
            folder=out,
            finished=log_line,
            progress=progress,
        )
    _print(result)
    typer.echo(f"protocol: {PROTOCOL}; deviations: {'; '.join(result.deviations)}")
    save_result(result, out, "ruler")


def _print(result: RulerResult) -> None:
    rows = [["task", "length", "samples", "found", "95 % interval"]]
    for task in result.tasks:
        for length in result.lengths:
            share, low, high = result.accuracy(task, length)
            rows.append([task, f"{length:,}", f"{result.samples:,}", f"{share:.1%}", f"{low:.1%} – {high:.1%}"])
    print_table(rows, f"RULER: {result.model}")
