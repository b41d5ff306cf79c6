"""Memories, their versions, and where in a store these are."""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

from titans.models.memory_state import MemoryState
from titans.persistence.names import to_folder
from titans.persistence.state_file import Header

VERSION_FILE = re.compile(r"(\d{12})\.safetensors")
DELETED = b"deleted\n"  # the content of the version that ends a memory


@dataclasses.dataclass(frozen=True)
class MemoryInfo:
    """What is known of a memory without reading its state.

    Args:
        tenant: whose it is.
        name: its name.
        version: rises with each write, from 1 by one, or by more where the tenant has deleted memories: no memory of
            a tenant's ever comes to a version again that one of the same name had.
        tokens: positions that its memory has read.
        bytes: size of its file.
        created: when it was first written, ISO 8601 in UTC.
        updated: when it was last written.
        foreign: another model made it, or this one under other weights: it can be reset, exported and deleted.
        damaged: its file cannot be read, and tokens, created and updated are not known, but 0 and empty; it can be
            reset and deleted.
    """

    tenant: str
    name: str
    version: int
    tokens: int
    bytes: int
    created: str
    updated: str
    foreign: bool = False
    damaged: bool = False


@dataclasses.dataclass(frozen=True)
class StoreCounts:
    """What a store holds.

    Args:
        tenants: who have, or had, memories.
        memories: of all of them.
        foreign: how many of these are of another model.
        damaged: how many cannot be read.
    """

    tenants: int
    memories: int
    foreign: int
    damaged: int


@dataclasses.dataclass(frozen=True)
class StoredMemory:
    """A memory as of one version.

    Args:
        state: its state, of one row.
        version: what `put` wants to see, to write the next one.
        info: all that is known of it.
    """

    state: MemoryState
    version: int
    info: MemoryInfo


class MemoryKey(NamedTuple):
    """Which memory."""

    tenant: str
    name: str

    @property
    def folder(self) -> str:
        """The folder of its versions."""
        return f"{to_folder(self.tenant)}/{to_folder(self.name)}"

    def file(self, version: int) -> str:
        """The file of one version."""
        return f"{self.folder}/{version:012d}.safetensors"

    def describe(self, version: Version, header: Header, mark: str) -> MemoryInfo:
        """Put together what is known; the mark is the fingerprint of the store's model."""
        return MemoryInfo(
            self.tenant, self.name, version.number, header.tokens, version.bytes, header.created, header.updated,
            foreign=header.fingerprint != mark,
        )  # fmt: skip

    def damaged(self, version: Version) -> MemoryInfo:
        """Put together what is known where the file cannot be read."""
        return MemoryInfo(self.tenant, self.name, version.number, 0, version.bytes, "", "", damaged=True)


class Version(NamedTuple):
    """A version of a memory; one that never was is as one that was deleted, at version 0."""

    number: int
    bytes: int

    @property
    def is_live(self) -> bool:
        """Tell it from a deletion: a state file is longer."""
        return self.bytes != len(DELETED)
