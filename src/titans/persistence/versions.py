"""The versions of the sessions as files, of which each number stands for one content for ever.

A session is a folder that holds its newest version as an immutable file, `000000000007.safetensors`. Writing is making
the next file, which only one writer can; then the older ones are removed. Deleting is writing a last version that says
so. Before that file is swept, its number is noted in the tenant's folder `=last`, and whatever session the tenant
starts later is numbered from there on: who still holds a version of a deleted session never takes a new one for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from titans.disk import SUFFIX
from titans.persistence.errors import (
    ConflictError,
    FingerprintError,
    StateFileError,
    StoreError,
    UnknownSessionError,
)
from titans.persistence.folders import Folder
from titans.persistence.names import to_folder, to_name
from titans.persistence.sessions import DELETED, VERSION_FILE, Place, Version

_DAY = 24 * 60 * 60  # seconds that a late writer has to notice a deletion
_LAST = "=last"  # no session's folder
_LAST_FILE = re.compile(r"\d{12}")

T = TypeVar("T")


class Versions:
    """Finds, makes and removes versions; see the module."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def tenants(self) -> list[str]:
        """Return the names of the tenants, sorted, some of whom may have no sessions any more."""
        return sorted(filter(None, map(to_name, self.folder.folders(""))))

    def names(self, tenant: str) -> list[str]:
        """Return the names of a tenant's sessions, sorted, some of which may be deleted."""
        return sorted(filter(None, map(to_name, self.folder.folders(to_folder(tenant)))))

    def newest(self, place: Place) -> Version:
        """Return the newest version of a session; where there is none, the deletion after which one may start."""
        # In this order: what is swept in between has been noted before.
        return max(self._all(place), default=None) or Version(self._last(to_folder(place.tenant)), len(DELETED))

    def existing(self, place: Place) -> Version:
        """Return the newest version of a session that there is.

        Raises:
            UnknownSessionError: there is none of that name.
        """
        newest = self.newest(place)
        if not newest.is_live:
            raise unknown(place.session)
        return newest

    def use(self, place: Place, use: Callable[[Version], T]) -> T | None:
        """Use the newest version, if there is one; one that a writer replaced meanwhile is looked up again."""
        newest, before = self.newest(place), None
        while newest.is_live and newest != before:
            try:
                with _naming(place):
                    return use(newest)
            except FileNotFoundError:
                newest, before = self.newest(place), newest
        return None

    def write(self, place: Place, newest: Version, data: bytes) -> Version:
        """Make the file of the version after `newest`, which succeeds for one writer, then remove the older ones.

        Raises:
            ConflictError: another writer was faster.
        """
        number = newest.number + 1
        try:
            self.folder.create(place.file(number), data)
        except FileExistsError as error:
            raise _conflict(place) from error
        except StoreError:
            self.folder.prune(place.folder)  # of a session that could not be begun
            raise
        others = [version.number for version in self._all(place) if version.number != number]
        late = any(other > number for other in others)  # others wrote this version and the next, and removed this one
        for other in [number] if late else others:
            with suppress(StoreError):  # the write is done: what is left goes with the next one
                self.folder.remove(place.file(other))
        if late:
            raise _conflict(place)
        return Version(number, len(data))

    def sweep(self) -> None:
        """Remove what deletions and crashes left more than a day ago."""
        paths = list(self.folder.old_files(_DAY, _is_leaving))
        last: dict[str, int] = {}
        for path in paths:
            tenant, _, name = path.partition("/")
            if match := VERSION_FILE.fullmatch(name.rpartition("/")[2]):
                last[tenant] = max(last.get(tenant, 0), int(match[1]))
        for tenant, number in last.items():
            self._note(tenant, number)
        for path in paths:
            self.folder.remove(path)
            self.folder.prune(path.rpartition("/")[0])

    def _all(self, place: Place) -> list[Version]:
        files = self.folder.files(place.folder).items()
        return [Version(int(match[1]), size) for name, size in files if (match := VERSION_FILE.fullmatch(name))]

    def _last(self, tenant: str) -> int:
        """Return the highest number that a swept deletion of a tenant, given by its folder, had."""
        return max((int(name) for name in self._noted(tenant)), default=0)

    def _note(self, tenant: str, number: int) -> None:
        if number > self._last(tenant):
            with suppress(FileExistsError):
                self.folder.create(f"{tenant}/{_LAST}/{number:012d}", DELETED)
            for name in self._noted(tenant):
                if int(name) < number:
                    self.folder.remove(f"{tenant}/{_LAST}/{name}")

    def _noted(self, tenant: str) -> list[str]:
        return [name for name in self.folder.files(f"{tenant}/{_LAST}") if _LAST_FILE.fullmatch(name)]


def unknown(session: str) -> UnknownSessionError:
    """Say that there is no session of a name."""
    return UnknownSessionError(f"there is no session {session!r}: list the sessions, or put a state to make it")


def _conflict(place: Place) -> ConflictError:
    return ConflictError(
        f"the session {place.session!r} was written by somebody else meanwhile: get it again and repeat what was done"
    )


def _is_leaving(name: str, size: int) -> bool:
    return name.endswith(SUFFIX) or (size == len(DELETED) and VERSION_FILE.fullmatch(name) is not None)


@contextmanager
def _naming(place: Place) -> Iterator[None]:
    """Say which session cannot be read."""
    try:
        yield
    except (FingerprintError, StateFileError) as error:
        raise type(error)(f"the session {place.session!r} of {place.tenant!r}: {error}") from error
