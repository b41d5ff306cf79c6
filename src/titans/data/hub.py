"""The Hugging Face hub, also where there is no network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

SECONDS = 5.0  # how long the hub may take to answer


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Have what is loaded in the body come from the hub, or at once from its cache where the hub does not answer.

    Left alone, the hub's client tries again and again for half a minute, also where there is no network at all.

    Yields:
        Nothing.
    """
    import huggingface_hub.constants

    if _answers():
        yield
        return
    # `datasets` has a copy of its own, made when it is imported
    modules = [huggingface_hub.constants, *(sys.modules[name] for name in ("datasets.config",) if name in sys.modules)]
    before = [module.__dict__["HF_HUB_OFFLINE"] for module in modules]
    try:
        for module in modules:
            module.__dict__["HF_HUB_OFFLINE"] = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.__dict__["HF_HUB_OFFLINE"] = value


def local_or_hub(name: str) -> AbstractContextManager[None]:
    """Have what the body loads come from a path where there is one of this name, else as by `hub_or_cache`."""
    return nullcontext() if Path(name).exists() else hub_or_cache()


def _answers() -> bool:
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # of whichever HTTP library the client is built on: all of them mean that nobody answered
        return False
    return True
