"""How commands print what they found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer


def print_table(rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table, its head first; the first column is set to the left and the others to the right."""
    from rich.console import Console
    from rich.table import Table

    head, *body = rows
    printed = Table(title=title)
    for number, name in enumerate(head):
        printed.add_column(name, justify="right" if number else "left")
    for row in body:
        printed.add_row(*row)
    console = Console()
    needed = Console(width=500).measure(printed).maximum
    console.width = max(console.width, needed)  # rather wrapped by the terminal than cut
    console.print(printed)


def save_result(result: Any, folder: Path | None, name: str) -> None:
    """Have a result save `NAME.json` and `NAME.png` in a folder, if there is one, and say where."""
    if folder is not None:
        result.save(folder)
        typer.echo(f"written: {folder / f'{name}.json'}, {folder / f'{name}.png'}")
