"""Memories that outlive the process: state files, and a store of them by tenant and name."""

from titans.persistence.backup import BackupReport, backup, restore
from titans.persistence.errors import (
    ConflictError,
    FingerprintError,
    InvalidNameError,
    LimitError,
    StateFileError,
    StoreError,
    UnknownMemoryError,
)
from titans.persistence.fingerprint import fingerprint
from titans.persistence.memories import MemoryInfo, StoreCounts, StoredMemory
from titans.persistence.state_file import load_state, save_state
from titans.persistence.store import MemoryStore

__all__ = [
    "BackupReport",
    "ConflictError",
    "FingerprintError",
    "InvalidNameError",
    "LimitError",
    "MemoryInfo",
    "MemoryStore",
    "StateFileError",
    "StoreCounts",
    "StoreError",
    "StoredMemory",
    "UnknownMemoryError",
    "backup",
    "fingerprint",
    "load_state",
    "restore",
    "save_state",
]
