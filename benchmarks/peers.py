"""Other implementations, each installed from the package index into an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

PACKAGES = {"titans-pytorch": "titans-pytorch==0.5.5", "titans-memory": "titans-memory", "open-titans": "open-titans"}
PLACE = Path(__file__).parent / ".peers"


def install(name: str) -> tuple[Path | None, str]:
    """Install a peer, unless it is there.

    Args:
        name: key of `PACKAGES`.

    Returns:
        Its Python, or None where it does not install; and what happened, in a few words.
    """
    place = PLACE / name
    python, stamp = place / "bin" / "python", place / "installed"
    if not stamp.exists():
        version = torch.__version__.split("+")[0]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(place)],
            [str(python), "-m", "pip", "install", "-q", f"torch=={version}", PACKAGES[name]],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["pip failed"]
                return None, f"does not install: {lines[-1]}"
        stamp.touch()
    found = subprocess.run([str(python), "-m", "pip", "freeze"], capture_output=True, text=True).stdout
    names = {name.lower(), name.lower().replace("-", "_")}
    return python, next((x for x in found.splitlines() if x.split("==")[0].lower() in names), "installed")
