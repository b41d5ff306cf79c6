"""Memories that outlive the process: state files, and a store of them by tenant and session."""

from titans.persistence.backup import Copied, backup, restore
from titans.persistence.errors import (
    ConflictError,
    FingerprintError,
    InvalidNameError,
    LimitError,
    StateFileError,
    StoreError,
    UnknownSessionError,
)
from titans.persistence.fingerprint import fingerprint
from titans.persistence.sessions import Census, SessionInfo, Stored
from titans.persistence.store import MemoryStore

__all__ = [
    "Census",
    "ConflictError",
    "Copied",
    "FingerprintError",
    "InvalidNameError",
    "LimitError",
    "MemoryStore",
    "SessionInfo",
    "StateFileError",
    "StoreError",
    "Stored",
    "UnknownSessionError",
    "backup",
    "fingerprint",
    "restore",
]
