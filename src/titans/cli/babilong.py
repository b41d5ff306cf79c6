"""`titans evaluate babilong`: questions about facts that lie scattered in long texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from titans.cli._arguments import make_results_folder, words
from titans.cli._loading import Write, silence_loading
from titans.cli._progress import log_line, show_progress
from titans.cli._tables import print_table, save_result
from titans.errors import TitansError

if TYPE_CHECKING:
    from titans.evaluation.babilong import BabilongResult


def babilong(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder or hub id of any causal language model.")],
    tasks: Annotated[str, typer.Option(help="Of qa1 to qa10, separated by commas.")] = "qa1,qa2,qa3,qa4,qa5",
    lengths: Annotated[str, typer.Option(help="0k (the facts alone), 1k, 2k … 1M, separated by commas.")] = "0k",
    background: Annotated[
        str | None, typer.Option(metavar="PATH", help="Books: files, a folder or a glob. Needed beyond 0k.")
    ] = None,
    babi: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The official bAbI files. Default: stories are made up.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=0, help="Examples in the prompt.", show_default="BABILong's 2 or 3")
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="Only context and question, for a model fine-tuned on such.")
    ] = False,
    samples: Annotated[int, typer.Option(min=1, help="Questions of each task at each length.")] = 100,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first so many of these.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of stories, texts and places.")] = 0,
    device: Annotated[str | None, typer.Option(help="As cpu or cuda. Default: the best of this machine.")] = None,
    write: Write = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write babilong.json and a plot here, and keep all answers.")
    ] = None,
) -> None:
    """Ask questions about the facts of a story that stand in order, but far apart, in the text of books.

    With --out, a run that was interrupted goes on where it was, and more tasks, lengths or samples can be added.

    [bold]Example:[/] titans evaluate babilong runs/tiny-cpu --tasks qa1 --lengths 0k,4k --background books
    """
    from titans.evaluation.babilong import run_babilong
    from titans.evaluation.babilong_questions import Questions

    questions = Questions(
        tuple(task.lower() for task in words(tasks)),
        tuple(length.lower().replace("m", "M") for length in words(lengths)),
        babi=babi,
        background=background,
        shots=shots,
        bare=bare,
        samples=min(samples, limit or samples),
        seed=seed,
    )
    make_results_folder(out)
    if background is not None:
        _check_background(background)
    silence_loading()
    from titans.evaluation.streaming_lm import load_streaming_lm

    lm = load_streaming_lm(model, device, write)
    typer.echo(questions.protocol)
    with show_progress(out) as progress:
        result = run_babilong(
            lm,
            questions,
            out,
            finished=log_line,
            progress=progress,
        )
    _print(result)
    save_result(result, out, "babilong")


def _check_background(background: str) -> None:
    """Find a misspelt path before the model is loaded."""
    from titans.data.corpora import local_files

    if local_files(background) == []:
        raise TitansError(f"{background} holds no files: expected books as text")


def _print(result: BabilongResult) -> None:
    rows = [["task", "length", "prompt tokens", "questions", "right", "95 % interval", "commonest answer"]]
    for score in result.scores:
        interval = f"{score.low:.1%} – {score.high:.1%}"
        cells = [f"{score.prompt_tokens:,.0f}", str(score.asked), f"{score.accuracy:.1%}", interval]
        rows.append([score.task, score.length, *cells, f"{score.majority:.1%}"])
    print_table(rows, f"{result.questions.name}: {result.model}")
