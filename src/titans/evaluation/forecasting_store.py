"""The runs of an evaluation that are done, each in a file of its own, under settings that all of them have."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from titans.errors import TitansError
from titans.io import atomic

SETTINGS, RUNS = "settings.json", "runs"


@dataclasses.dataclass(frozen=True)
class Run:
    """One model, trained and tested at one horizon.

    Args:
        model: one of `MODELS`.
        horizon: steps to forecast.
        seed: of its weights and its training; None for what is not trained.
    """

    model: str
    horizon: int
    seed: int | None

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"{self.model}-{self.horizon}" + ("" if self.seed is None else f"-{self.seed}")

    def __str__(self) -> str:
        """Name it to the user."""
        return f"{self.model}, horizon {self.horizon}" + ("" if self.seed is None else f", seed {self.seed}")


class Store:
    """A folder of runs; each is written whole or not at all.

    Args:
        folder: made if it does not exist.
        settings: what all runs share, as JSON has it.

    Raises:
        TitansError: the folder holds runs with other settings.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder / RUNS
        self._folder.mkdir(parents=True, exist_ok=True)
        path = folder / SETTINGS
        if not path.exists():
            atomic.write_json(path, settings)
            return
        found = _parse(path, "use another folder")
        differing = [name.replace("_", " ") for name in settings if found.get(name) != settings[name]]
        if differing:
            raise TitansError(
                f"{folder} holds runs with other settings ({', '.join(differing)}; see {path}): give the same again, "
                "or another folder"
            )

    def __contains__(self, run: Run) -> bool:
        return self._path(run).exists()

    def get(self, run: Run) -> dict[str, Any]:
        """Read what is kept of a run.

        Raises:
            TitansError: its file is damaged.
        """
        path, advice = self._path(run), "delete it, and it will be done again"
        found = _parse(path, advice)
        if any(found.get(name) != value for name, value in dataclasses.asdict(run).items()):
            raise TitansError(f"{path} holds another run: {advice}")
        return found

    def add(self, run: Run, kept: dict[str, Any]) -> None:
        """Write what is to be kept of a run."""
        atomic.write_json(self._path(run), kept)

    def _path(self, run: Run) -> Path:
        return self._folder / f"{run.name}.json"


def _parse(path: Path, advice: str) -> dict[str, Any]:
    try:
        found = json.loads(atomic.read(path))
    except ValueError as error:
        raise TitansError(f"{path} is no JSON file ({error}): {advice}") from error
    if not isinstance(found, dict):
        raise TitansError(f"{path} is damaged: {advice}")
    return found
