"""Words of the sentences that say what was done to data."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 5  # columns that a sentence names before it counts the others


def counted(number: int, one: str, several: str | None = None) -> str:
    """A number with its noun: "1 row", "2,000 rows"."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def note_names(notes: list[str], names: Sequence[object], kind: str, what: str) -> None:
    """Note what holds of the columns or series of these names, if there are any: "2 columns left out: a, b"."""
    if len(names):
        notes.append(f"{counted(len(names), kind, 'series' if kind == 'series' else None)} {what}: {listed(names)}")


def is_are(number: int) -> str:
    """The verb for so many."""
    return "is" if number == 1 else "are"


def was_were(number: int) -> str:
    """The verb for so many, in the past."""
    return "was" if number == 1 else "were"


def listed(names: Sequence[object]) -> str:
    """The first of many names, and how many follow."""
    more = len(names) - _NAMED
    return ", ".join(map(str, names[:_NAMED])) + (f" and {more:,} more" if more > 0 else "")
