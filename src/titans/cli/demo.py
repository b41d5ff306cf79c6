"""`titans demo`: the main job, from nothing to a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titans.cli._arguments import make_results_folder
from titans.cli._progress import progress_bar


def demo(
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", metavar="PATH", help="Text to train on: files, folders or globs. Default: Python's own."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the report goes.")] = Path("demo-report"),
    quick: Annotated[
        bool, typer.Option("--quick", help="The same steps in a minute; too short to learn recall.")
    ] = False,
) -> None:
    """Train small Titans models and a twin without memory, test recall far outside the window, write a report.

    At most 10 minutes on 2 CPU cores; downloads nothing. The corpus is the text that comes with Python, or --data.

    [bold]Example:[/] titans demo --data books/ --out demo-report
    """
    from titans.data.corpora import documents, local_files

    for source in data or []:
        local_files(source)  # a misspelt path is known before the work is done
    make_results_folder(out)

    from titans.data.standard_library import standard_library
    from titans.demo.demonstrate import demonstrate

    corpus = documents(data) if data else standard_library()
    described = ", ".join(data) if data else "Python's documentation topics and standard library"
    with progress_bar(transient=False) as progress:
        page, sentences = demonstrate(corpus, described, out, quick, progress)
    for sentence in sentences:
        typer.echo(sentence)
    typer.echo(f"written: {page}")
