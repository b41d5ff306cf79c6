"""What several commands take the same way: lists, lengths, the folder to write to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from titans.errors import TitansError

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Replace values of the recipe; dots between the levels."),
]
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}


def words(listed: str) -> list[str]:
    """Split a list at its commas and spaces."""
    return listed.replace(",", " ").split()


def whole_numbers(listed: str, what: str) -> list[int]:
    """Read a list of numbers, with K for 1,024 and M for 1,048,576; an error calls them `what`."""
    numbers = []
    for word in words(listed):
        match = re.fullmatch(r"(\d+)([km]?)", word.lower())
        if match is None:
            raise TitansError(f'the {what} are "{listed}", expected whole numbers such as 96,2048 or 2K,1M')
        numbers.append(int(match[1]) * UNITS[match[2]])
    return numbers


def check_folder(folder: Path | None) -> None:
    """Refuse a folder that results cannot go to, as a file is in its place or above it, before the work is done."""
    for part in () if folder is None else (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise TitansError(f"{part} is a file: expected a folder to write to")


def make_folder(folder: Path | None) -> None:
    """Make the folder that results go to, if any, so that one that cannot be made is known before the work is done."""
    check_folder(folder)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)


def make_results_folder(folder: Path | None) -> None:
    """Make the folder that numbers and plots go to, if any; refuse to where no plot can be drawn."""
    from titans import plots

    if folder is not None:
        plots.check()
    make_folder(folder)
