"""What several commands take the same way: lists, lengths, the folder to write to."""

from __future__ import annotations

import re
from pathlib import Path

from titans.errors import TitansError

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}


def words(listed: str) -> list[str]:
    """Split a list at its commas and spaces."""
    return listed.replace(",", " ").split()


def whole_numbers(listed: str, what: str) -> list[int]:
    """Read a list of numbers, with K for 1,024 and M for 1,048,576.

    Args:
        listed: the list.
        what: to call the numbers.

    Raises:
        TitansError: one of them is none.
    """
    numbers = []
    for word in words(listed):
        match = re.fullmatch(r"(\d+)([km]?)", word.lower())
        if match is None:
            raise TitansError(f'the {what} are "{listed}", expected whole numbers such as 96,2048 or 2K,1M')
        numbers.append(int(match[1]) * UNITS[match[2]])
    return numbers


def check_folder(folder: Path | None) -> None:
    """Refuse a folder that results cannot go to, before the work is done.

    Args:
        folder: which. None: none.

    Raises:
        TitansError: there is a file in its place, or in that of one above it.
    """
    for part in () if folder is None else (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise TitansError(f"{part} is a file: expected a folder to write to")


def make_folder(folder: Path | None) -> None:
    """Make the folder that results go to, so that one that cannot be made is known before the work is done.

    Args:
        folder: which. None: nothing is made.

    Raises:
        TitansError: as `check_folder`.
    """
    check_folder(folder)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)


def make_results_folder(folder: Path | None) -> None:
    """Make the folder that numbers and plots go to, see `make_folder`.

    Args:
        folder: which. None: nothing is made, and nothing will be drawn.

    Raises:
        TitansError: there is a file in its place, or no plot can be drawn.
    """
    from titans import plots

    if folder is not None:
        plots.check()
    make_folder(folder)
