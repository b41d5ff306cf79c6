"""Answers already given, one line each, under settings that all of them have: what makes an evaluation resumable."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from titans.errors import TitansError
from titans.io import atomic

SETTINGS, ANSWERS = "settings.json", "answers.jsonl"


class ResultStore:
    """Answers already given, one JSON line each, under settings that all of them have.

    Args:
        folder: made if it does not exist. None: the answers are kept in memory only.
        settings: what every answer depends on, as JSON has it.
        fields: what every answer consists of.

    Raises:
        TitansError: the folder holds answers given under other settings, or its files are damaged. A last line that
            was being written at a crash is dropped.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], fields: Collection[str]) -> None:
        self._fields = set(fields)
        self._path = None if folder is None else folder / ANSWERS
        self._answers: dict[str, dict[str, Any]] = {}
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        _check_settings(folder, json.loads(json.dumps(settings, allow_nan=False)))  # tuples become lists
        if (folder / ANSWERS).exists():
            self._read(folder / ANSWERS)

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the answer of a name, or None where it was not given yet."""
        return self._answers.get(key)

    def add(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer; it is in the file when this returns.

        Args:
            key: its name.
            answer: texts, finite numbers, lists and dictionaries.
        """
        line = json.dumps({"key": key, "answer": dict(answer)}, allow_nan=False) + "\n"
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(line.encode())
        self._answers[key] = json.loads(line)["answer"]

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # a crash while the line was written
            with path.open("rb+") as file:
                file.truncate(whole)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                found = json.loads(line)
                answer = {name: found["answer"][name] for name in self._fields}
                if len(answer) < len(found["answer"]):
                    raise ValueError("more fields than an answer has")
                self._answers[found["key"]] = answer
            except (ValueError, TypeError, KeyError) as error:
                raise TitansError(
                    f"{path}, line {number} is damaged: delete that line, and its question will be asked again"
                ) from error


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a folder of other settings; write them where there are none."""
    path = folder / SETTINGS
    if not path.exists():
        if (folder / ANSWERS).exists():
            raise TitansError(f"{folder} holds answers but no {SETTINGS} that says what they are: use another folder")
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
            f"{folder} holds answers given under other settings ({names}; see {path}): give the same again, or another "
            "folder"
        )
