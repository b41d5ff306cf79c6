"""Files that a crash leaves whole: on disk before they have their name."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUFFIX = ".unfinished"


def replace(path: Path, data: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, whole.

    Args:
        path: the file; its folder exists.
        data: its new content.
    """
    with _unfinished(path, data) as written:
        written.replace(path)


def replace_json(path: Path, content: Any) -> None:
    """Write JSON as `replace` writes bytes.

    Args:
        path: the file; its folder exists.
        content: dictionaries, lists, texts and finite numbers.
    """
    replace(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def create(path: Path, data: bytes) -> None:
    """Write a file that must not exist; of several processes that try, one succeeds.

    Args:
        path: the file; its folder exists.
        data: its content.

    Raises:
        FileExistsError: it exists.
    """
    with _unfinished(path, data) as written:
        os.link(written, path)  # atomic, and unlike a renaming it replaces nothing


def read(path: Path, start: int = 0, end: int | None = None) -> bytes:
    """Read the bytes `start` to `end` (exclusive) of a file, fewer where it is shorter."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(-1 if end is None else end - start)


def flush(path: Path) -> None:
    """Force the content of a file to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def flush_names(folder: Path) -> None:
    """Force to disk which files a folder holds; Windows opens no folders and does it by itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _unfinished(path: Path, data: bytes) -> Iterator[Path]:
    """Write beside `path`, hand out where, and leave neither that file nor an unflushed name behind."""
    unfinished = path.with_name(f"{uuid.uuid4().hex}{SUFFIX}")  # a name of its own: several may write at once
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)
    flush_names(path.parent)
