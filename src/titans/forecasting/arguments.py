"""Checks of what a forecaster is called with: each a sentence that says what was expected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from titans.errors import TitansError
from titans.forecasting.long_frames import ID, TARGET, TIME


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TitansError(f"{name} is {value!r}, expected a whole number of at least {least}")


def check_positive(name: str, value: Any) -> None:
    """Refuse what is no finite number above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise TitansError(f"{name} is {value!r}, expected a number above 0")


def check_levels(quantiles: Any) -> list[float] | None:
    """Check the levels, sort them, and put the median among them."""
    if quantiles is None:
        return None
    try:
        levels = sorted({0.5, *(float(level) for level in quantiles)})
    except (TypeError, ValueError):
        levels = [math.nan]
    symmetric = all(abs(low + high - 1) < 1e-9 for low, high in zip(levels, reversed(levels), strict=True))
    if not symmetric or not all(0 < level < 1 for level in levels):
        raise TitansError(
            f"quantiles are {quantiles!r}, expected levels between 0 and 1 that come in pairs, such as (0.1, 0.5, 0.9)"
        )
    return levels


def check_names(names: Any) -> list[str]:
    """Return the names of covariates as a list."""
    listing = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    wrong = [name for name in listing if not isinstance(name, str) or name in (ID, TIME, TARGET)]
    if wrong or len(set(listing)) < len(listing):
        raise TitansError(
            f"future_covariates are {names!r}, expected names of columns other than unique_id, ds and y, each once"
        )
    return listing
