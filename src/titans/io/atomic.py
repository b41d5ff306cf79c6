"""Files that a crash leaves whole: on disk before they have their name."""

from __future__ import annotations

import json
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, where nobody can remove a file that is being written
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".unfinished"
PRIVATE = 0o600  # of a file for its owner alone, whatever the umask
_USUAL = 0o666  # less the umask
_DAY = 24 * 60 * 60  # seconds


def write(path: Path, data: bytes, mode: int = _USUAL) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one, whole.

    Args:
        path: the file; its folder exists.
        data: its new content.
        mode: who may read and write it, where there was none; another keeps the mode that it had.
    """
    with _unfinished(path, data, mode) as written:
        with suppress(FileNotFoundError):
            written.chmod(stat.S_IMODE(path.stat().st_mode))
        written.replace(path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON as `write` writes bytes.

    Args:
        path: the file; its folder exists.
        content: dictionaries, lists, texts and finite numbers.
    """
    write(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def create(path: Path, data: bytes) -> None:
    """Write a file, for its owner alone, that must not exist; of several processes that try, one succeeds.

    Args:
        path: the file; its folder exists.
        data: its content.

    Raises:
        FileExistsError: it exists.
        FileNotFoundError: its folder is gone, or the unfinished file was taken for one that a crash had left.
        OSError: it cannot be written; then it is not there.
    """
    made = False
    try:
        with _unfinished(path, data, PRIVATE) as written:
            os.link(written, path)  # atomic, and unlike a renaming it replaces nothing
            made = True
    except OSError:
        if made:  # and its name perhaps not on disk: who hears that it failed tries again
            path.unlink(missing_ok=True)
        raise


def read(path: Path, start: int = 0, end: int | None = None) -> bytes:
    """Read the bytes `start` to `end` (exclusive) of a file, fewer where it is shorter."""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(-1 if end is None else end - start)


def sync(path: Path) -> None:
    """Force the content of a file to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force to disk which files a folder holds; Windows opens no folders and does it by itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_abandoned(path: Path) -> bool:
    """Tell whether an unfinished file was left by a crash: it is there, and no writer holds it."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return False
        if fcntl is not None:
            with path.open("rb+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except (FileNotFoundError, BlockingIOError):
        return False
    except OSError:
        pass  # a file system without locks
    return status.st_mtime < time.time() - _DAY


@contextmanager
def _unfinished(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """Write beside `path`, hand out where, and leave neither that file nor an unflushed name behind."""
    unfinished = path.with_name(f"{uuid.uuid4().hex}{SUFFIX}")  # a name of its own: several may write at once
    try:
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(path.parent)
