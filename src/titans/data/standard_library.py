"""Real text that comes with every Python: its documentation topics and the sources of its standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from titans.data.corpora import Document, documents


def standard_library() -> Iterator[Document]:
    """Yield the topics of `help()`, then the modules of the standard library: some 10 MB, always in the same order."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield Document(f"help({name!r})", lambda text=text: iter((text,)))  # type: ignore[misc]
    yield from documents(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
