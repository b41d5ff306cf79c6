"""How a command shows what it is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


def progress_bar(transient: bool = True) -> Progress:
    """Make a display of steps whose lengths are known.

    Args:
        transient: remove it when the work is done. Default True.

    Returns:
        A context manager; on stderr, as results go to stdout.
    """
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    return _on_stderr(*columns, transient=transient)


def progress_counter(what: str) -> Progress:
    """Make a display of how much was done, where nobody knows how much there is.

    Args:
        what: what is counted, in the plural.

    Returns:
        A context manager; on stderr, and removed when the work is done.
    """
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    return _on_stderr(SpinnerColumn(), TextColumn(f"{{task.completed:,.0f}} {what}"), TimeElapsedColumn())


def _on_stderr(*columns: ProgressColumn, transient: bool = True) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    # what is removed at the end would leave empty lines in a file
    return Progress(*columns, console=console, transient=transient, disable=transient and not console.is_terminal)
