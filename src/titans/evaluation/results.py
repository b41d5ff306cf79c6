"""How evaluations keep what they found: numbers as JSON, and a picture of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans import plots
from titans.io import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_result(folder: Path, name: str, content: Mapping[str, Any], drawn: Figure, picture: str | None = None) -> None:
    """Write `NAME.json` and a picture, `NAME.png` or of a name of its own, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_json(folder / f"{name}.json", dict(content))
    plots.save(drawn, folder / f"{picture or name}.png")
