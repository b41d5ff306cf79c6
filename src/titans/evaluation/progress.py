"""How an evaluation tells what it is doing: the progress of a part as that of the whole, and what is finished."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]  # share of the work done, and what is being done
Finished = Callable[[str], None]  # a sentence for each part that is done, with what it gave


def within(progress: Progress, done: int, size: int, total: int, what: str) -> Callable[..., None]:
    """Return what reports the share of one part of the work, and perhaps a detail, as that of the whole.

    The part is of this size, of a total, after what is done; its begin is reported at once.
    """

    def show(share: float, detail: str = "") -> None:
        progress((done + size * share) / total, f"{what}: {detail}" if detail else what)

    show(0.0)
    return show


def unseen(share: float, what: str) -> None:
    """Show nothing."""


def unheard(sentence: str) -> None:
    """Say nothing."""
