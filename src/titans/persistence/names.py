"""Names of tenants and memories, and the names of the folders that hold them."""

from __future__ import annotations

import re

from titans.persistence.errors import InvalidNameError

_NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._\-@:+]{1,128}")  # URLs lose a part that is only dots
_FOLDER = re.compile(r"([a-z0-9,_\-@;+]{1,128})=([0-9a-f]{1,32})")
_TO_FOLDER, _TO_NAME = str.maketrans(".:", ",;"), str.maketrans(",;", ".:")


def check_name(name: str) -> str:
    """Refuse what is no name.

    Args:
        name: of a tenant or a memory.

    Returns:
        The name.

    Raises:
        InvalidNameError: it is not 1 to 128 of the characters that a name may hold, or only dots.
    """
    if not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) < 150 else f"{repr(name)[:150]}..."
        raise InvalidNameError(
            f"the name {shown} is not 1 to 128 letters, digits or ._-@:+, or only dots: choose another name"
        )
    return name


def to_folder(name: str) -> str:
    """Return the folder for a name: different names have folders that differ also where case does not count.

    The folder is the name in small letters, then `=` and which of its letters are capitals. Points and colons, which
    some systems treat specially at some places, have stand-ins, so that no name is `..` or a device.

    Raises:
        InvalidNameError: the name is not one.
    """
    capitals = sum(1 << i for i, letter in enumerate(check_name(name)) if letter.isupper())
    return f"{name.lower().translate(_TO_FOLDER)}={capitals:x}"


def to_name(folder: str) -> str | None:
    """Return the name that a folder stands for; None for a folder that is none of ours."""
    match = _FOLDER.fullmatch(folder)
    if match is None:
        return None
    capitals = int(match[2], 16)
    letters = match[1].translate(_TO_NAME)
    name = "".join(x.upper() if capitals >> i & 1 else x for i, x in enumerate(letters))
    return name if _NAME.fullmatch(name) and to_folder(name) == folder else None
