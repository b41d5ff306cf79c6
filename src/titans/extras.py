"""What an extra brings is imported where it is used; where it is missing, one sentence says which extra to install."""

from __future__ import annotations

from titans.errors import TitansError


def missing(error: ImportError, extra: str, purpose: str) -> TitansError:
    """Return the error that tells which extra to install.

    Args:
        error: of the import.
        extra: the extra that brings the module, such as "forecast".
        purpose: what it is needed for, the sentence's subject: "forecasting".
    """
    return TitansError(
        f'{purpose} needs {error.name or error}, which is not installed: pip install "titans-lm[{extra}]"'
    )
