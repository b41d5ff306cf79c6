"""Errors of other code, told in one sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from titans.errors import TitansError


def first_line(error: Exception) -> str:
    """Shorten the message of an exception to one line, or to the name of its class where it has none.

    Args:
        error: the exception.

    Returns:
        The first line; with the second where the first only announces it with a colon.
    """
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


@contextlib.contextmanager
def refused_as(sentence: str) -> Iterator[None]:
    """Turn a `ValueError` of the body into a `TitansError` that gives its first line as the reason.

    Args:
        sentence: what cannot be done.

    Yields:
        Nothing.

    Raises:
        TitansError: the body raised a `ValueError`; one that is a `TitansError` already passes unchanged.
    """
    try:
        yield
    except TitansError:
        raise
    except ValueError as error:
        raise TitansError(f"{sentence}: {first_line(error)}") from error
