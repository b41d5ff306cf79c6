"""How an evaluation tells what it is doing: the progress of a part as that of the whole, and what is finished."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]  # share of the work done, and what is being done
Finished = Callable[[str], None]  # a sentence for each part that is done, with what it gave


def within(progress: Progress, done: int, size: int, total: int, what: str) -> Callable[..., None]:
    """Return what reports a share of one part of the work, and perhaps a detail; its begin is reported at once.

    Args:
        progress: told about the whole.
        done: how much of the work is done before the part.
        size: of the part.
        total: of the whole.
        what: the part.
    """

    def show(share: float, detail: str = "") -> None:
        progress((done + size * share) / total, f"{what}: {detail}" if detail else what)

    show(0.0)
    return show


def unseen(share: float, what: str) -> None:
    """Show nothing."""


def unheard(sentence: str) -> None:
    """Say nothing."""
