"""A store of memories by tenant and name, for several threads and processes at once."""

from __future__ import annotations

import builtins
import dataclasses
import logging
import os
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile
from typing import Any

from titans.errors import TitansError
from titans.io.atomic import SUFFIX
from titans.models.memory_state import MemoryState
from titans.models.provenance import Provenance
from titans.persistence.cache import Cache
from titans.persistence.errors import ConflictError, LimitError, StateFileError, StoreError
from titans.persistence.fingerprint import base, fingerprint
from titans.persistence.folders import open_folder
from titans.persistence.memories import MemoryInfo, MemoryKey, StoreCounts, StoredMemory, Version
from titans.persistence.names import check_name
from titans.persistence.state_file import check, dump, parse, read_header
from titans.persistence.versions import Versions, unknown

logger = logging.getLogger(__name__)


class MemoryStore:
    """Keeps the memories of every tenant.

    Every write is on disk when it returns; memory holds copies of what was used last. Of several writers of one
    version one succeeds, and the others get a `ConflictError`. All methods may be called from any thread, and raise a
    `StoreError` where the place itself fails: full, read-only, gone, or broken.

    Args:
        root: a folder, made if need be, or an fsspec URL such as `s3://bucket/memories`.
        model: the model whose memories these are.
        cache_bytes: memory for copies of states. Default 256 MiB.
        max_state_bytes: size that the file of a state may have. Default: any.
        max_memories: memories that a tenant may have; processes that make memories at the same moment may exceed it
            by one each. Default: any number.

    Raises:
        TitansError: the root cannot be opened.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        model: Any,
        *,
        cache_bytes: int = 256 * 2**20,
        max_state_bytes: int | None = None,
        max_memories: int | None = None,
    ) -> None:
        self.folder = open_folder(root)
        self.versions = Versions(self.folder)
        self._model: Any = base(model)
        self._max_state_bytes, self._max_memories = max_state_bytes, max_memories
        self._cache: Cache[tuple[str, StoredMemory]] = Cache(cache_bytes)
        try:
            self.versions.sweep()
        except StoreError as error:  # what can be read is of use all the same
            logger.warning("what deletions and crashes left in the store stays: %s", error)

    def get(self, tenant: str, name: str) -> StoredMemory | None:
        """Read a memory.

        Args:
            tenant: whose.
            name: its name.

        Returns:
            Its newest version, or None if there is no such memory.

        Raises:
            FingerprintError: it was written with another model.
            StateFileError: its file is damaged.
        """
        key = _key(tenant, name)
        return self.versions.use(key, lambda newest: self._stored(key, newest))

    def put(self, tenant: str, name: str, state: MemoryState, *, expected: int | None) -> MemoryInfo:
        """Write the next version of a memory.

        Args:
            tenant: whose.
            name: its name.
            state: its new state, of one row.
            expected: the version that `get` returned; None or 0 where the memory must not exist.

        Returns:
            What is known of the memory now.

        Raises:
            ConflictError: the memory is at another version.
            LimitError: the state is too large, or the tenant has too many memories.
            TitansError: the state has more than one row, or is not of this model.
        """
        key = _key(tenant, name)
        newest = self.versions.newest(key)
        current = newest.number if newest.is_live else 0
        if current != (expected or 0):
            raise ConflictError(
                f"the memory {name!r} is at version {current} and not {expected or 0}: "
                "get it again and repeat what was done"
            )
        return self._write(key, state, newest)

    def list(
        self, tenant: str, *, limit: int = 100, after: str | None = None, prefix: str = ""
    ) -> builtins.list[MemoryInfo]:
        """List the memories of a tenant, sorted by name, the damaged ones among them.

        Args:
            tenant: whose.
            limit: memories to return at most. Default 100.
            after: the last name of the page before. Default: start with the first.
            prefix: how their names start; of no other a file is opened. Default: anyhow.

        Returns:
            What is known of each.
        """
        names = self.versions.names(tenant)
        start = max(bisect_right(names, after or ""), bisect_left(names, prefix))
        own = takewhile(lambda name: name.startswith(prefix), islice(names, start, None))
        return list(islice(self._listed(MemoryKey(tenant, name) for name in own), limit))

    def info(self, tenant: str, name: str) -> MemoryInfo | None:
        """Tell what is known of a memory without reading its state; None if there is no such memory.

        Raises:
            StateFileError: its file is damaged.
        """
        key = _key(tenant, name)
        return self.versions.use(key, partial(self._info, key, fingerprint(self._model)))

    def fork(self, tenant: str, name: str, to: str) -> MemoryInfo:
        """Start a new memory as a copy of another.

        Args:
            tenant: whose.
            name: the one to copy.
            to: the name of the new one, which must not exist.

        Returns:
            What is known of the new one.

        Raises:
            UnknownMemoryError: there is nothing to copy.
            ConflictError: there is a memory of the new name.
            TitansError: as of `get` and `put`.
        """
        stored = self.get(tenant, check_name(name))
        if stored is None:
            raise unknown(name)
        return self.put(tenant, to, stored.state, expected=None)

    def reset(self, tenant: str, name: str, state: MemoryState | None = None) -> MemoryInfo:
        """Start a memory anew.

        Args:
            tenant: whose.
            name: its name.
            state: in which new ones start, of one row. Default: the model's initial state.

        Returns:
            What is known of the memory now.

        Raises:
            UnknownMemoryError: there is no such memory.
            ConflictError: another writer was faster.
            TitansError: as of `put`.
        """
        key = _key(tenant, name)
        newest = self.versions.existing(key)
        return self._write(key, self._model.initial_state(1) if state is None else state, newest)

    def delete(self, tenant: str, name: str) -> None:
        """Delete a memory; whoever is about to write it gets a conflict.

        Raises:
            UnknownMemoryError: there is no such memory.
            ConflictError: another writer was faster.
        """
        key = _key(tenant, name)
        self.versions.delete(key)
        self._cache.drop(key)

    def export(self, tenant: str, name: str) -> bytes:
        """Return a memory's state file, which `load` and `load_state` read.

        Raises:
            UnknownMemoryError: there is no such memory.
            StateFileError: its file is damaged.
        """
        key = _key(tenant, name)
        data = self.versions.use(key, lambda newest: self._checked(key, newest))
        if data is None:
            raise unknown(name)
        return data

    def load(self, tenant: str, name: str, data: bytes) -> MemoryInfo:
        """Make a state file the next version of a memory, or the first.

        Args:
            tenant: whose.
            name: its name.
            data: the content of the file, which need not be trusted.

        Returns:
            What is known of the memory now.

        Raises:
            StateFileError: the content is damaged or no state.
            FingerprintError: it belongs to another model.
            TitansError: as of `put`.
        """
        key = _key(tenant, name)
        self._check_size(len(data))
        state, header = parse(data, self._model)
        return self._write(key, state, self.versions.newest(key), header.created)

    def adopt(self, tenant: str, name: str) -> MemoryInfo:
        """Take a memory of another model for one of this model, as far as the shapes allow.

        What it remembers was written under other weights: whether these read it as well is for the caller to try.

        Args:
            tenant: whose.
            name: its name.

        Returns:
            What is known of the memory now.

        Raises:
            UnknownMemoryError: there is no such memory.
            StateFileError: its file is damaged, or holds no state that fits this model.
            TitansError: as of `put`.
        """
        key = _key(tenant, name)
        found = self.versions.use(key, lambda newest: (newest, self.folder.read(key.file(newest.number))))
        if found is None:
            raise unknown(name)
        return self._write(key, parse(found[1], self._model, force=True)[0], found[0])

    def tenants(self) -> builtins.list[str]:
        """Return the names of the tenants, sorted; some may have no memories any more."""
        return self.versions.tenants()

    def names(self, tenant: str) -> builtins.list[str]:
        """Return the names of a tenant's memories, sorted, damaged ones too; one may have been deleted by now."""
        return self.versions.names(tenant)

    def count(self) -> StoreCounts:
        """Count the memories, and those that this model cannot go on from; opens every memory's file."""
        tenants, memories, foreign, damaged = self.tenants(), 0, 0, 0
        for info in self._listed(MemoryKey(tenant, name) for tenant in tenants for name in self.names(tenant)):
            memories, foreign, damaged = memories + 1, foreign + info.foreign, damaged + info.damaged
        return StoreCounts(len(tenants), memories, foreign, damaged)

    def check(self) -> None:
        """Find out whether the store can be written, by writing a small file and removing it.

        Raises:
            StoreError: it cannot.
        """
        path = f"=check/{uuid.uuid4().hex}{SUFFIX}"  # no tenant's folder, and swept if a crash leaves it
        self.folder.create(path, b"ready\n")
        self.folder.remove(path)

    def _stored(self, key: MemoryKey, newest: Version) -> StoredMemory:
        mark, cached = fingerprint(self._model), self._cache.get(key)
        if cached is not None and cached[0] == mark and cached[1].version == newest.number:
            return cached[1]
        state, header = parse(self.folder.read(key.file(newest.number)), self._model)
        _check_one_row(state)
        return self._keep(state, key.describe(newest, header, mark))

    def _checked(self, key: MemoryKey, newest: Version) -> bytes:
        data = self.folder.read(key.file(newest.number))
        check(data)
        return data

    def _info(self, key: MemoryKey, mark: str, newest: Version) -> MemoryInfo:
        header = read_header(partial(self.folder.read, key.file(newest.number)), newest.bytes)
        return key.describe(newest, header, mark)

    def _listed(self, keys: Iterable[MemoryKey]) -> Iterator[MemoryInfo]:
        """Describe the memories that there are, the damaged ones among them."""
        mark = fingerprint(self._model)
        for key in keys:
            try:
                info = self.versions.use(key, partial(self._info, key, mark))
            except StateFileError:
                newest = self.versions.newest(key)
                info = key.damaged(newest) if newest.is_live else None
            if info is not None:
                yield info

    def _keep(self, state: MemoryState, info: MemoryInfo) -> StoredMemory:
        stored = StoredMemory(state, info.version, info)
        self._cache.put(MemoryKey(info.tenant, info.name), (fingerprint(self._model), stored), state.nbytes)
        return stored

    def _write(self, key: MemoryKey, state: MemoryState, newest: Version, created: str | None = None) -> MemoryInfo:
        """Write the version after `newest`."""
        _check_one_row(state)
        if newest.is_live:
            with suppress(FileNotFoundError, StateFileError):  # a damaged memory may be written anew
                created = self._info(key, "", newest).created
        else:
            self._check_count(key.tenant)
        data = dump(state, self._model, created=created)
        self._check_size(len(data))
        written = self.versions.write(key, newest, data)
        header = read_header(lambda start, end: data[start:end], len(data))
        info = key.describe(written, header, header.fingerprint)
        copy = state.detach().to(self._model.device).clone()  # of its own: the caller's may be a row of a large batch
        self._keep(dataclasses.replace(copy, provenance=Provenance.of(self._model)), info)
        return info

    def _check_size(self, size: int) -> None:
        if self._max_state_bytes is not None and size > self._max_state_bytes:
            raise LimitError(
                f"the state takes {size:,} bytes and this store allows {self._max_state_bytes:,}: "
                "use a smaller model, or raise max_state_bytes"
            )

    def _check_count(self, tenant: str) -> None:
        """Refuse one more memory; the deleted ones are told from the others only where that may matter."""
        limit = self._max_memories
        if limit is None or len(names := self.versions.names(tenant)) < limit:
            return
        if sum(self.versions.newest(MemoryKey(tenant, name)).is_live for name in names) >= limit:
            raise LimitError(f"{tenant!r} has {limit:,} memories already: delete one, or raise max_memories")


def _key(tenant: str, name: str) -> MemoryKey:
    return MemoryKey(check_name(tenant), check_name(name))


def _check_one_row(state: MemoryState) -> None:
    if state.rows != 1:
        raise TitansError(f"the state has {state.rows} rows and a memory has one: store each state.row(i) on its own")
