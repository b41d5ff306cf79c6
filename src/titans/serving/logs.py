"""One JSON object a line, for people with many machines."""

from __future__ import annotations

import json
import logging
import time


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, and what the call added as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json() -> None:
    """Let all loggers write JSON lines to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
