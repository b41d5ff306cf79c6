"""Where a store keeps its files: a local folder, or anything that fsspec has a name for.

Both are trees of small files. Paths are relative, with `/` between the names; a missing folder is an empty one. Every
method raises a StoreError where the place itself fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from titans.errors import TitansError
from titans.io import atomic
from titans.persistence.errors import StoreError

_PRIVATE = 0o700  # of a folder: its owner's alone, whatever the umask
Wanted = Callable[[str, int], bool]  # of a file's name and size


def open_folder(root: str | os.PathLike[str]) -> Folder:
    """Open a folder on disk, which is made if need be, or at any fsspec URL.

    Args:
        root: a path, or a URL such as `s3://bucket/memories` or `memory://test`.

    Returns:
        The folder.

    Raises:
        TitansError: there is no such kind of URL, or what it needs is not installed.
    """
    root = os.fspath(root).removeprefix("file://").removeprefix("local://")
    return RemoteFolder(root) if "://" in root else LocalFolder(Path(root))


@contextmanager
def _failures(kind: type[Exception]) -> Iterator[None]:
    """Raise errors of a kind as the store's, but for those that tell whether a file is there."""
    try:
        yield
    except (FileNotFoundError, FileExistsError, TitansError):
        raise
    except kind as error:
        raise StoreError.of(error) from error


_local = _failures(OSError)
_remote = _failures(Exception)  # each service's library has errors of its own


class LocalFolder:
    """A folder on disk; links in it are not followed."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        try:
            self.root.mkdir(_PRIVATE, parents=True, exist_ok=True)
        except OSError as error:
            raise TitansError(
                f"cannot open the store {root} ({error.strerror}): expected a folder that this process may write"
            ) from error

    @_local
    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return [entry.name for entry in self.entries(path) if entry.is_dir(follow_symlinks=False)]

    @_local
    def files(self, path: str) -> dict[str, int]:
        """Return the names of the files in a folder, and their sizes in bytes, also of what is replaced meanwhile."""
        while True:
            files = [entry for entry in self.entries(path) if entry.is_file(follow_symlinks=False)]
            try:
                return {entry.name: entry.stat(follow_symlinks=False).st_size for entry in files}
            except FileNotFoundError:
                continue  # removed since it was listed, and what a writer made in its place is not in the list

    @_local
    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes `start` to `end` of a file; raise FileNotFoundError where there is none."""
        return atomic.read(self._at(path), start, end)

    @_local
    def create(self, path: str, data: bytes) -> None:
        """Write a whole file, on disk when this returns; raise FileExistsError where there is one."""
        target = self._at(path)
        while True:
            try:
                self._make(target.parent)
                return atomic.create(target, data)
            except FileNotFoundError:
                continue  # another process pruned the folder, which was empty, or swept what it took for abandoned

    @_local
    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        self._at(path).unlink(missing_ok=True)

    @_local
    def leavings(self, wanted: Wanted) -> list[str]:
        """Return the paths of the files with a wanted name and size, and of those that a crash left unfinished."""
        found = []
        for folder, _, names in os.walk(self.root):
            for name in names:
                file = Path(folder, name)
                with suppress(FileNotFoundError):
                    unfinished = name.endswith(atomic.SUFFIX) and atomic.is_abandoned(file)
                    if unfinished or wanted(name, file.lstat().st_size):
                        found.append(file.relative_to(self.root).as_posix())
        return found

    def prune(self, path: str) -> None:
        """Remove a folder, if it is empty."""
        with suppress(OSError):
            self._at(path).rmdir()

    def _at(self, path: str) -> Path:
        """Find a path, no part of which is a link."""
        place = self.root
        for name in path.split("/"):
            place = place / name
            if place.is_symlink():
                raise TitansError(f"{place.relative_to(self.root)} is a link, and the store follows none: remove it")
        return place

    def entries(self, path: str) -> list[os.DirEntry[str]]:
        """Return what is in a folder."""
        try:
            with os.scandir(self._at(path)) as entries:
                return list(entries)
        except FileNotFoundError:
            self._check_root()
            return []

    def _check_root(self) -> None:
        if not self.root.is_dir():
            raise StoreError("gone", "its folder was removed")

    def _make(self, folder: Path) -> None:
        """Make a folder inside the root and force its name to disk."""
        self._check_root()
        if folder != self.root and not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(_PRIVATE, exist_ok=True)
            atomic.sync_folder(folder.parent)


class RemoteFolder:
    """A folder in an object store, or whatever else fsspec reaches.

    Exclusive creation is the service's: a conditional request on S3 and Google Cloud Storage.
    """

    _memory = Lock()  # fsspec's own memory looks for a file and then makes it, or tells its size, in two steps

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self.fs, self.root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise TitansError(
                f"cannot open the store {url} ({error}): is the URL right, and is titans-lm[remote] installed?"
            ) from error
        self._alone = self._memory if "memory" in self.fs.protocol else nullcontext()

    @_remote
    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return [name for name, entry in self.entries(path).items() if entry["type"] == "directory"]

    @_remote
    def files(self, path: str) -> dict[str, int]:
        """Return the names of the files in a folder, and their sizes in bytes."""
        return {name: entry["size"] for name, entry in self.entries(path).items() if entry["type"] == "file"}

    @_remote
    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes `start` to `end` of a file."""
        data: bytes = self.fs.cat_file(self._at(path), start=start, end=end)
        return data

    @_remote
    def create(self, path: str, data: bytes) -> None:
        """Write a whole file that is not there yet."""
        with self._alone:
            try:
                self.fs.pipe_file(self._at(path), data, mode="create")
            except OSError as error:
                if self.fs.exists(self._at(path)):  # services differ in how they say so
                    raise FileExistsError(path) from error
                raise

    @_remote
    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with self._alone, suppress(FileNotFoundError):
            self.fs.rm_file(self._at(path))

    @_remote
    def leavings(self, wanted: Wanted) -> list[str]:
        """Return the paths of the files with a wanted name and size, and of those that a crash left unfinished."""
        with self._alone:
            found = self.fs.find(self.root, detail=True)
        return [
            path.removeprefix(f"{self.root}/")
            for path, entry in found.items()
            if path.endswith(atomic.SUFFIX) or wanted(path.rpartition("/")[2], entry["size"])
        ]

    def prune(self, path: str) -> None:
        """Do nothing: a folder without files is not there."""

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def entries(self, path: str) -> dict[str, dict[str, Any]]:
        """Return what is in a folder, as fsspec describes it, by its name."""
        try:
            with self._alone:
                entries = self.fs.ls(self._at(path).rstrip("/"), detail=True)
        except FileNotFoundError:
            return {}
        return {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in entries}


Folder = LocalFolder | RemoteFolder
