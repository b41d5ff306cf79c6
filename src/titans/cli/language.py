"""`titans evaluate lm`: the tasks of lm-evaluation-harness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from titans.cli._arguments import make_results_folder, whole_numbers, words
from titans.cli._loading import AnyModel, Write, silence_loading
from titans.cli._progress import log_line, show_progress
from titans.cli._tables import print_table, save_result
from titans.errors import TitansError

if TYPE_CHECKING:
    from titans.evaluation.language import LanguageResult, Metric


def lm(
    model: AnyModel,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks or groups of the harness, separated by commas. Default: the nine of the usual table, from "
            "wikitext to boolq."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Take the documents from files in this folder, as far as it has them."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many documents of each task, drawn by --seed. Default all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of documents.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences of one forward pass.")] = 1,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Tokens of a window of wikitext, and the most that is left of a prompt. Default: the model's limit; "
            "a model without one reads windows of 2,048 and whole prompts.",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="L,L,...",
            help="Tokens of the texts of tasks that make their own, as RULER's; 2K is 2,048. Default: theirs, 4K.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="As cpu or cuda:1. Default: the best of this machine.")] = None,
    write: Write = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write language.json and a plot here, and keep finished tasks."),
    ] = None,
) -> None:
    """Accuracies and perplexities on EleutherAI's lm-evaluation-harness: its tasks as they are defined.

    Finished tasks in --out are not repeated: after Ctrl-C the same command goes on.

    [bold]Example:[/] titans evaluate lm runs/tiny-cpu --tasks piqa,hellaswag --data evals --limit 200 --out report
    """
    from titans.evaluation.language.run import require_harness

    require_harness()
    if data is not None and not data.is_dir():
        raise TitansError(f"there is no folder {data}: expected one that holds the tasks' files")
    sizes = None if lengths is None else whole_numbers(lengths, "lengths")
    make_results_folder(out)
    from titans.evaluation.language import TABLE, evaluate_language
    from titans.evaluation.streaming_lm import load_streaming_lm

    silence_loading()
    loaded = load_streaming_lm(model, device, write)
    names = list(TABLE) if tasks is None else words(tasks)
    with show_progress(out) as progress:
        result = evaluate_language(
            loaded,
            names,
            data=data,
            limit=limit,
            seed=seed,
            batch_size=batch_size,
            max_length=max_length,
            lengths=sizes,
            folder=out,
            finished=log_line,
            progress=progress,
        )
    _print(result)
    save_result(result, out, "language")


def _print(result: LanguageResult) -> None:
    rows = [["task", "documents", "metric", "value", "95 % interval"]]
    for task in result.tasks:
        what = f"{task.task} ({task.subtasks} tasks)" if task.subtasks else task.task
        for name, metric in task.shown.items():
            rows.append([what, f"{task.documents:,} of {task.of:,}", *_cells(name, metric)])
    if result.average is not None:
        rows.append(["average of the accuracies", "", "", f"{result.average:.1%}", ""])
    print_table(rows, f"lm-evaluation-harness: {result.model}")
    typer.echo(result.protocol)


def _cells(name: str, metric: Metric) -> list[str]:
    from titans.evaluation.language.result import as_text, in_words

    numbers = (metric.value, metric.low, metric.high)
    value, low, high = ("" if number is None else as_text(name, number) for number in numbers)
    return [in_words(name), value, f"{low} – {high}" if low else ""]
