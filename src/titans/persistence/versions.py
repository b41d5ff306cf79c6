"""The versions of the memories as files, of which each number stands for one content for ever.

A memory is a folder that holds its newest version as an immutable file, `000000000007.safetensors`. Writing is making
the next file, which only one writer can; then the older ones are removed. Deleting is writing a last version that says
so, noting its number in the tenant's folder `=last`, and removing the file. Whatever memory the tenant starts later is
numbered from there on: who still holds a version of a deleted memory never takes a new one for it.

A writer (1) reads the note, (2) sees that the newest version is still the one that it builds on, (3) makes the file of
the number above both, which must not be there, then (4) looks again. Only if nothing happened meanwhile (no version is
higher, the one that it builds on is there, the note is below its number) is the write acknowledged. Otherwise it notes
its number, takes its file back, and begins again, if the version that it builds on is still the newest.

No number of a memory is acknowledged twice. The file of an acknowledged version N goes only after a higher version was
acknowledged, for whose file the same holds, or after a deletion of at least N was noted. So at any later time there is
a higher version or a note of at least N: who looked before and makes N again finds it in (4), and who looks later does
not come to N, also not from a file that is about to be taken back, since it counts from the note as well.

Of those who build on one version, one is acknowledged. Where they read the same note, only one can make the file. Where
one read a higher note, this had risen before that one's (2), and so before any other made a file, which (2) would have
seen; the number of who read the lower note is at most the higher one, which it finds in (4).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from titans.persistence.errors import (
    ConflictError,
    FingerprintError,
    StateFileError,
    StoreError,
    UnknownMemoryError,
)
from titans.persistence.folders import Folder
from titans.persistence.memories import DELETED, VERSION_FILE, MemoryKey, Version
from titans.persistence.names import to_folder, to_name

_LAST = "=last"  # no memory's folder
_LAST_FILE = re.compile(r"\d{12}")

T = TypeVar("T")


class Versions:
    """Finds, makes and removes versions; see the module."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def tenants(self) -> list[str]:
        """Return the names of the tenants, sorted, some of whom may have no memories any more."""
        return sorted(filter(None, map(to_name, self.folder.folders(""))))

    def names(self, tenant: str) -> list[str]:
        """Return the names of a tenant's memories, sorted, some of which may be deleted."""
        return sorted(filter(None, map(to_name, self.folder.folders(to_folder(tenant)))))

    def newest(self, key: MemoryKey) -> Version:
        """Return the newest version of a memory: a deletion, or none at number 0, where there is no memory."""
        return max(self.all(key), default=Version(0, len(DELETED)))

    def existing(self, key: MemoryKey) -> Version:
        """Return the newest version of a memory that there is.

        Raises:
            UnknownMemoryError: there is none of that name.
        """
        newest = self.newest(key)
        if not newest.is_live:
            raise unknown(key.name)
        return newest

    def use(self, key: MemoryKey, use: Callable[[Version], T]) -> T | None:
        """Use the newest version, if there is one; one that a writer replaced meanwhile is looked up again."""
        newest, before = self.newest(key), None
        while newest.is_live and newest != before:
            try:
                with _naming(key):
                    return use(newest)
            except FileNotFoundError:
                newest, before = self.newest(key), newest
        return None

    def write(self, key: MemoryKey, newest: Version, data: bytes) -> Version:
        """Make the file of the version after `newest`, which succeeds for one writer, then remove the older ones.

        Raises:
            ConflictError: another writer was faster.
        """
        while True:
            made = self._make(key, self._next(key, newest), data)
            others = [version for version in self.all(key) if version.number != made.number]
            late = self.is_late(key, newest, made, others)
            if late:
                with suppress(StoreError):  # whoever read the file meanwhile never takes another for it
                    self.note(key.tenant, made.number)
            for other in [made] if late else others:
                with suppress(StoreError):  # the write is done: what is left goes with the next one
                    self.folder.remove(key.file(other.number))
            if not late:
                return made

    def delete(self, key: MemoryKey) -> None:
        """Write the last version of a memory, and sweep it.

        Raises:
            UnknownMemoryError: there is no such memory.
            ConflictError: another writer was faster.
        """
        deletion = self.write(key, self.existing(key), DELETED)
        with suppress(StoreError):  # the memory is deleted: what is left is swept when a store is opened
            self.bury(key, deletion.number)

    def sweep(self) -> None:
        """Remove what deletions and crashes left."""
        paths = self.folder.leavings(_is_deletion)
        for path in sorted(paths, key=lambda path: path.rpartition("/")[2], reverse=True):  # the highest is noted first
            folder, _, name = path.rpartition("/")
            tenant, memory = (to_name(part) for part in folder.split("/")) if folder.count("/") == 1 else (None, None)
            if tenant and memory and (match := VERSION_FILE.fullmatch(name)):
                self.bury(MemoryKey(tenant, memory), int(match[1]))
            else:
                self.folder.remove(path)
                self.folder.prune(folder)

    def last(self, tenant: str) -> int:
        """Return the highest number that a swept deletion of a tenant had."""
        return max((int(name) for name in self._noted(tenant)), default=0)

    def note(self, tenant: str, number: int) -> None:
        """Have the memories that a tenant starts from here on numbered above `number`."""
        noted = self._noted(tenant)
        if number > max(map(int, noted), default=0):
            with suppress(FileExistsError):
                self.folder.create(f"{to_folder(tenant)}/{_LAST}/{number:012d}", DELETED)
            for name in sorted(noted)[:-1]:  # the one before stays: a listing under way may miss the new one
                self.folder.remove(f"{to_folder(tenant)}/{_LAST}/{name}")

    def _next(self, key: MemoryKey, newest: Version) -> int:
        """Return the number above `newest` and above the tenant's note, if `newest` still is the newest."""
        last, seen = self.last(key.tenant), self.newest(key)  # in this order, see the module
        if seen != newest and (seen.is_live or newest.is_live):
            raise _conflict(key)
        return max(seen.number, last) + 1

    def _make(self, key: MemoryKey, number: int, data: bytes) -> Version:
        try:
            self.folder.create(key.file(number), data)
        except FileExistsError as error:
            raise _conflict(key) from error
        except StoreError:
            self.folder.prune(key.folder)  # of a memory that could not be begun
            raise
        return Version(number, len(data))

    def is_late(self, key: MemoryKey, newest: Version, made: Version, others: list[Version]) -> bool:
        """Tell whether others were at work between a look at `newest` and the making of the version after it."""
        if max(others, default=made) > made or self.last(key.tenant) >= made.number:
            return True
        return newest not in others if newest.is_live else any(other.is_live for other in others)

    def bury(self, key: MemoryKey, number: int) -> None:
        """Note the number of a deletion, then remove it, after whatever a crash left of what was deleted."""
        self.note(key.tenant, number)
        for version in sorted(self.all(key)):
            if version.number <= number:
                self.folder.remove(key.file(version.number))
        self.folder.prune(key.folder)

    def all(self, key: MemoryKey) -> list[Version]:
        """Return the versions of a memory whose files are there, in no order."""
        files = self.folder.files(key.folder).items()
        return [Version(int(match[1]), size) for name, size in files if (match := VERSION_FILE.fullmatch(name))]

    def _noted(self, tenant: str) -> list[str]:
        files = self.folder.files(f"{to_folder(tenant)}/{_LAST}")
        return [name for name in files if _LAST_FILE.fullmatch(name)]


def unknown(name: str) -> UnknownMemoryError:
    """Say that there is no memory of a name."""
    return UnknownMemoryError(f"there is no memory {name!r}: list the memories, or put a state to make it")


def _conflict(key: MemoryKey) -> ConflictError:
    return ConflictError(
        f"the memory {key.name!r} was written by somebody else meanwhile: get it again and repeat what was done"
    )


def _is_deletion(name: str, size: int) -> bool:
    return size == len(DELETED) and VERSION_FILE.fullmatch(name) is not None


@contextmanager
def _naming(key: MemoryKey) -> Iterator[None]:
    """Say which memory cannot be read."""
    try:
        yield
    except (FingerprintError, StateFileError) as error:
        raise type(error)(f"the memory {key.name!r} of {key.tenant!r}: {error}") from error
