"""What can be wrong with a saved memory, or with what is asked of a store."""

from __future__ import annotations

import errno
from typing import Literal

from titans.errors import TitansError

_KINDS: dict[int | None, Literal["full", "read-only"]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "full"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "read-only"),
}
_REMEDIES = {
    "full": "make room on its disk, or raise its quota",
    "read-only": "let this process write it",
    "gone": "mount it or bring it back from a backup, then start again",
    "failed": "look at its disk or its service",
}


class StateFileError(TitansError):
    """A state file is damaged, is no state file, or cannot be made of this state."""


class FingerprintError(TitansError):
    """A saved state belongs to another model; the message names both fingerprints."""


class ConflictError(TitansError):
    """A memory is not at the version that the caller expected: somebody else wrote it, or made it, meanwhile."""


class UnknownMemoryError(TitansError):
    """There is no memory of that name."""


class InvalidNameError(TitansError):
    """A name of a tenant or memory holds what no name may hold."""


class LimitError(TitansError):
    """A state is larger, or a tenant has more memories, than the store allows."""


class StoreError(TitansError):
    """The place of a store cannot be read or written: no mistake of who asked, and for whoever runs the store to mend.

    Args:
        kind: "full" (no room), "read-only" (no permission to write, either), "gone" (the store's folder was removed)
            or "failed" (anything else, such as a disk's error or a service that does not answer).
        reason: the system's words for it, which name no path.
    """

    def __init__(self, kind: Literal["full", "read-only", "gone", "failed"], reason: str) -> None:
        is_what = {"read-only": "cannot be written", "failed": "does not work"}.get(kind, f"is {kind}")
        super().__init__(f"the store {is_what} ({reason}): {_REMEDIES[kind]}")
        self.kind = kind

    @classmethod
    def of(cls, error: Exception) -> StoreError:
        """Tell what an error of the system, or of a service's library, means for the store."""
        code = error.errno if isinstance(error, OSError) else None
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        return cls(_KINDS.get(code, "failed"), reason)
