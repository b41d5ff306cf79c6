"""The results that an evaluation has so far, in a folder, so that it goes on where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from titans.errors import TitansError
from titans.io import atomic

SETTINGS, RESULTS = "settings.json", "results.jsonl"


class ResultStore:
    """Results by name, one JSON line each, under settings that all of them have.

    Args:
        folder: made if it does not exist. None: the results are kept in memory only.
        settings: what every result depends on, as JSON has it.
        fields: what every result has at least. Default: anything.

    Raises:
        TitansError: the folder holds results under other settings, or its files are damaged. A last line that was
            being written at a crash is dropped.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], fields: Collection[str] = ()) -> None:
        self._fields = set(fields)
        self._path = None if folder is None else folder / RESULTS
        self._results: dict[str, dict[str, Any]] = {}
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        _check_settings(folder, json.loads(json.dumps(settings, allow_nan=False)))  # tuples become lists
        if (folder / RESULTS).exists():
            self._read(folder / RESULTS)

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the result of a name, or None where there is none yet."""
        return self._results.get(key)

    def result(self, key: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the result of a name; it is made, and kept, where there is none yet."""
        if key not in self._results:
            self.add(key, make())
        return self._results[key]

    def add(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep a result; it is in the file when this returns.

        Args:
            key: its name.
            result: texts, finite numbers, lists and dictionaries.
        """
        line = json.dumps({"key": key, "result": dict(result)}, allow_nan=False) + "\n"
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(line.encode())
        self._results[key] = json.loads(line)["result"]

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # a crash while the line was written
            with path.open("rb+") as file:
                file.truncate(whole)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                found = json.loads(line)
                result = dict(found["result"])
                if not self._fields <= result.keys():
                    raise ValueError("fields are missing")
                self._results[found["key"]] = result
            except (ValueError, TypeError, KeyError) as error:
                raise TitansError(
                    f"{path}, line {number} is damaged: delete that line, and it will be done again"
                ) from error


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a folder of other settings; write them where there are none."""
    path = folder / SETTINGS
    if not path.exists():
        if (folder / RESULTS).exists():
            raise TitansError(f"{folder} holds results but no {SETTINGS} that says what they are: use another folder")
        atomic.write_json(path, settings)
        return
    try:
        found = dict(json.loads(atomic.read(path)))
    except (ValueError, TypeError) as error:
        raise TitansError(f"{path} is damaged: use another folder") from error
    differing = [name for name in {**settings, **found} if found.get(name) != settings.get(name)]
    if differing:
        names = ", ".join(differing).replace("_", " ")
        raise TitansError(
            f"{folder} holds results under other settings ({names}; see {path}): give the same again, or another folder"
        )
