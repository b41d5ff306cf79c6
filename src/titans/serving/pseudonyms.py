"""Stand-ins for the names of users and their memories, in text that others may read."""

from __future__ import annotations

import hashlib
import re

from titans.persistence.names import to_name

# A memory's name, `user:memory`, as messages quote it, and the folder that a store keeps it in.
_QUOTED = re.compile(r"(['\"])([A-Za-z0-9._@+-]{1,63}:[A-Za-z0-9._@+-]{0,63})\1")
_FOLDER = re.compile(r"[a-z0-9,_@+-]+;[a-z0-9,_@+-]*=[0-9a-f]+")


def pseudonym(memory: str) -> str:
    """Return a stand-in that is the same wherever the memory is meant: the start of its name's SHA-256."""
    return f"memory-{hashlib.sha256(memory.encode()).hexdigest()[:12]}"


def without_names(text: str) -> str:
    """Put stand-ins in place of the memories named in a text, be it a message, a path or a traceback."""
    text = _QUOTED.sub(lambda found: pseudonym(found[2]), text)
    return _FOLDER.sub(lambda found: pseudonym(to_name(found[0]) or found[0]), text)
