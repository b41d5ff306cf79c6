"""The progress of a part as progress of the whole."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]  # share of the work done, and what is being done


def within(progress: Progress, done: int, size: int, total: int, what: str) -> Callable[[float], None]:
    """Return what reports a share of one part of the work, and has reported that the part begins.

    Args:
        progress: told about the whole.
        done: how much of the work is done before the part.
        size: of the part.
        total: of the whole.
        what: the part.
    """

    def show(share: float) -> None:
        progress((done + size * share) / total, what)

    show(0.0)
    return show


def unseen(share: float, what: str) -> None:
    """Show nothing."""
