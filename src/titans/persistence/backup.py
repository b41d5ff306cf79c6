"""Copies of a whole store, taken while it is written, and a store made of such a copy."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from functools import partial

from titans.errors import TitansError
from titans.persistence.errors import StateFileError
from titans.persistence.folders import open_folder
from titans.persistence.memories import MemoryKey, Version
from titans.persistence.state_file import check
from titans.persistence.versions import Versions

_LEAP = 1_000_000  # versions: more than a memory is given between a backup and the day it is needed
_RATE = 100  # versions a second that a clock counts: more than a memory is given; 12 digits last until 2286


@dataclasses.dataclass(frozen=True)
class BackupReport:
    """What was copied.

    Args:
        memories: how many.
        bytes: of their files.
        damaged: what is wrong with those that were left out, one sentence each.
    """

    memories: int
    bytes: int
    damaged: tuple[str, ...]


def backup(store: str | os.PathLike[str], target: str | os.PathLike[str]) -> BackupReport:
    """Copy a store, which may be written meanwhile: each memory as of one moment between start and end.

    A version's file never changes, and one that a writer replaces while it is looked for is looked up again, so that no
    memory is missed, torn or older than what had been written at the start. The copy is a store itself.

    Args:
        store: a folder or an fsspec URL.
        target: another, which holds nothing yet.

    Returns:
        What was copied.

    Raises:
        TitansError: the target holds something.
        StoreError: one of the two cannot be read or written.
    """
    return _copy(store, target, 0)


def restore(copy: str | os.PathLike[str], target: str | os.PathLike[str]) -> BackupReport:
    """Make a store of a backup. All versions are higher than in the backup, and than in what was restored of it before.

    So none that was written after the backup, or after another restore, and that a client may still hold, comes again
    with another content: all are the time of the restore, in hundredths of a second.

    Args:
        copy: what `backup` made.
        target: a folder or an fsspec URL, which holds nothing yet.

    Returns:
        What was copied.

    Raises:
        TitansError: the target holds something.
        StoreError: one of the two cannot be read or written.
    """
    return _copy(copy, target, int(time.time() * _RATE))


def _copy(source_root: str | os.PathLike[str], target_root: str | os.PathLike[str], least: int) -> BackupReport:
    source, target = Versions(open_folder(source_root)), Versions(open_folder(target_root))
    if target.folder.folders("") or target.folder.files(""):
        raise TitansError(f"{target_root} holds something already: give a new folder")
    number = None  # of all memories, if not the one that each has; above those of the copy, also if clocks went wrong
    if least:
        numbers = [source.newest(key).number for key in _places(source)]
        highest = max([0, *numbers, *map(source.last, source.tenants())])
        number = least if least > highest else highest + _LEAP
    sizes, damaged = [], []
    for key in _places(source):
        try:
            size = source.use(key, partial(_copy_one, source, target, key, number))
        except StateFileError as error:
            damaged.append(str(error))
            continue
        if size is not None:  # not deleted meanwhile
            sizes.append(size)
    for tenant in source.tenants():
        if last := number or source.last(tenant):
            target.note(tenant, last)
    return BackupReport(len(sizes), sum(sizes), tuple(damaged))


def _places(versions: Versions) -> Iterator[MemoryKey]:
    return (MemoryKey(tenant, name) for tenant in versions.tenants() for name in versions.names(tenant))


def _copy_one(source: Versions, target: Versions, key: MemoryKey, number: int | None, newest: Version) -> int:
    data = source.folder.read(key.file(newest.number))
    check(data)
    target.folder.create(key.file(number or newest.number), data)
    return len(data)
