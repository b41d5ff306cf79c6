"""One JSON object a line, for people with many machines; no flood of lines that say the same."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable

from titans.persistence.names import to_name

# A memory's name, `user:memory`, as messages quote it, and the folder that a store keeps it in.
_QUOTED = re.compile(r"(['\"])([A-Za-z0-9._@+-]{1,63}:[A-Za-z0-9._@+-]{0,63})\1")
_FOLDER = re.compile(r"[a-z0-9,_@+-]+;[a-z0-9,_@+-]*=[0-9a-f]+")


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, and what the call added as `extra={"fields": {...}}`.

    Args:
        names: whether users and their memories are named; a stand-in is there otherwise. Default: no.
    """

    def __init__(self, names: bool = False) -> None:
        super().__init__()
        self.shown: Callable[[str], str] = str if names else redact

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.shown(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.shown(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


class FewOfAKind(logging.Filter):
    """Lets through so many records of a kind in a minute; the last of them says that the others are left out.

    A kind is one message of one logger, whatever is filled in. A request of a tenant always passes; requests that
    nobody let in can be made by anybody, so that they are a kind.

    Args:
        most: records of a kind in a minute. Default 60.
        clock: tells the seconds. Default that of the system.
    """

    def __init__(self, most: int = 60, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.most, self.clock = most, clock
        self.seen: Counter[tuple[str, str]] = Counter()
        self.until = clock() + 60

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record passes."""
        fields = getattr(record, "fields", {})
        if fields.get("tenant") is not None:
            return True
        if self.clock() >= self.until:
            self.seen.clear()
            self.until = self.clock() + 60
        kind = record.name, str(record.msg).partition("\n")[0]
        self.seen[kind] += 1
        if self.seen[kind] == self.most:
            record.fields = {**fields, "others": f"left out for {self.until - self.clock():.0f} s"}
        return self.seen[kind] <= self.most


def log_as_json(names: bool = False) -> None:
    """Let all loggers write JSON lines to stderr.

    Args:
        names: see `JsonFormatter`.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(names))
    handler.addFilter(FewOfAKind())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def hashed_name(memory: str) -> str:
    """Return a stand-in that is the same wherever the memory is meant: the start of its name's SHA-256."""
    return f"memory-{hashlib.sha256(memory.encode()).hexdigest()[:12]}"


def redact(text: str) -> str:
    """Put stand-ins in place of the memories named in a text, be it a message, a path or a traceback."""
    text = _QUOTED.sub(lambda found: hashed_name(found[2]), text)
    return _FOLDER.sub(lambda found: hashed_name(to_name(found[0]) or found[0]), text)
