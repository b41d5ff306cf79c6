"""Real text that comes with every Python: its documentation topics and the sources of its standard library."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from titans.data.corpora import Document, documents


def standard_library() -> Iterator[Document]:
    """Yield the documentation topics of `help()`, then the top-level modules of the standard library.

    Yields:
        One document per topic and per source file, in a fixed order; about 10 MB in all.
    """
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield Document(f"help({name!r})", lambda text=text: iter((text,)))  # type: ignore[misc]
    yield from documents(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
