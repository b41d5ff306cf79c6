"""What can be wrong with a saved memory, or with what is asked of a store."""

from __future__ import annotations

from titans.errors import TitansError


class StateFileError(TitansError):
    """A state file is damaged, is no state file, or cannot be made of this state."""


class FingerprintError(TitansError):
    """A saved state belongs to another model; the message names both fingerprints."""


class ConflictError(TitansError):
    """A session is not at the version that the caller expected: somebody else wrote it, or made it, meanwhile."""


class UnknownSessionError(TitansError):
    """There is no session of that name."""


class InvalidNameError(TitansError):
    """A name of a tenant or session holds what no name may hold."""


class LimitError(TitansError):
    """A state is larger, or a tenant has more sessions, than the store allows."""
