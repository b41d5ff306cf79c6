"""`titans inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titans.cli._arguments import make_folder
from titans.cli._loading import Write, load_for_inference, text_or_file


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder or hub id.")],
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The text to read.", show_default=False)] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the text to read, instead.")] = None,
    write: Write = None,
    out: Annotated[Path, typer.Option(metavar="HTML", help="The page to write.")] = Path("inspect.html"),
) -> None:
    """Show what a text does to the memory: one HTML page, which needs no server and no other file.

    Each token is coloured by how much it surprised the memory, and marked as written, skipped or dropped; the first
    20,000 tokens are read.

    [bold]Example:[/] titans inspect runs/tiny-cpu --file book.txt --out book.html
    """
    from titans.evaluation.inspection import inspect as read
    from titans.serving.inspection_page import write_inspection_page

    blocks = text_or_file(text, file, "TEXT")
    from titans.training.pretrained import load_write_policy

    policy = load_write_policy(model, write)
    make_folder(out.parent)
    language_model, tokenizer = load_for_inference(model)
    inspection = read(language_model, tokenizer, blocks, policy=policy)
    facts = {"Model": model, "variant": language_model.config.kind} | ({} if file is None else {"file": str(file)})
    write_inspection_page(out, inspection, facts | {"write": policy.write})
    written = sum(token.written for token in inspection.tokens) / len(inspection.tokens)
    before, after = inspection.total_norms[0], inspection.total_norms[-1]
    typer.echo(f"tokens           {len(inspection.tokens):,}{'' if inspection.complete else ', the first of the text'}")
    typer.echo(f"taken to memory  {written:.1%}")
    typer.echo(f"memory norm      {before:.4g} before, {after:.4g} after")
    typer.echo(f"written: {out}")
