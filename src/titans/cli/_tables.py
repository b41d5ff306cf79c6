"""How commands print what they found."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table, its first column set to the left and the others to the right.

    Args:
        rows: of cells, the head first.
        title: above it. Default: none.
    """
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
