"""How a command shows what it is doing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress, ProgressColumn


def progress_bar(transient: bool = True) -> Progress:
    """Make a display, on stderr, of steps whose lengths are known; a transient one is removed when the work is done."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    return _on_stderr(*columns, transient=transient)


def log_line(sentence: str) -> None:
    """Say what is finished where a log is written: on a terminal the bar shows how far the work is."""
    from rich.console import Console

    if not Console(stderr=True).is_terminal:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def show_progress(folder: Path | None = None) -> Iterator[Callable[[float, str], None]]:
    """Yield what shows how far the work is; on Ctrl-C say that the same command goes on, where `folder` keeps parts."""
    try:
        with progress_bar() as progress:
            task = progress.add_task("", total=1.0)
            yield lambda share, what: progress.update(task, completed=share, description=what)
    except KeyboardInterrupt:
        if folder is None:
            raise
        raise KeyboardInterrupt(f"interrupted: what is finished is in {folder}, the same command goes on") from None


def progress_counter(what: str) -> Progress:
    """Make a display, on stderr, of how much was done (`what`, a plural), where nobody knows how much there is."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    return _on_stderr(SpinnerColumn(), TextColumn(f"{{task.completed:,.0f}} {what}"), TimeElapsedColumn())


def _on_stderr(*columns: ProgressColumn, transient: bool = True) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)  # this very one, also while a library's messages are kept away
    # what is removed at the end would leave empty lines in a file
    return Progress(*columns, console=console, transient=transient, disable=transient and not console.is_terminal)
