"""The picture of an inspection: one HTML file that needs no other and loads nothing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from pathlib import Path

from titans.evaluation.inspection import Inspection
from titans.io import atomic

PAGE = Path(__file__).parent / "page"
MODULES = ("dom.js", "trace.js", "charts.js", "inspect.js")  # each imports only from those before it


def write_inspection_page(path: Path, inspection: Inspection, facts: dict[str, str]) -> None:
    """Write the page, whole or not at all.

    Args:
        path: of the HTML file.
        inspection: what to show.
        facts: what to say about the run (name to value).
    """
    atomic.write(path, inspection_page(inspection, facts).encode())


def inspection_page(inspection: Inspection, facts: dict[str, str]) -> str:
    """Build the page: see `write_inspection_page`."""
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    script = _script()
    parts = {
        "policy": f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}",
        "style": style,
        "script": script,
        "data": _data(dataclasses.asdict(inspection) | {"facts": facts}),
    }
    template = (PAGE / "inspect.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _script() -> str:
    """The page's modules as one: a file cannot import from itself, and what a module imports stands above it."""
    modules = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in MODULES)
    return re.sub(r"^import .*\n|^export ", "", modules, flags=re.MULTILINE)


def _source(text: str) -> str:
    """Allow this text, and no other, to run: what a model writes is shown here, and may be hostile."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(value: object) -> str:
    """Write JSON that can stand in a script element: without "<", nothing in it ends the element."""
    return json.dumps(value).replace("<", "\\u003c")
