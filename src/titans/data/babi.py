"""bAbI (Weston et al., 2015): stories of short facts with one question each, and the reader of the official files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from titans.errors import TitansError
from titans.io.text import read_text, without_compression

_ROOMS = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
_OBJECTS = ("apple", "football", "milk")

LABELS = {
    "qa1": _ROOMS,
    "qa2": _ROOMS,
    "qa3": _ROOMS,
    "qa4": _ROOMS,
    "qa5": ("Bill", "Fred", "Jeff", "Mary", *_OBJECTS),
    "qa6": ("no", "yes"),
    "qa7": ("none", "one", "two", "three"),
    "qa8": (*_OBJECTS, "nothing"),
    "qa9": ("no", "yes"),
    "qa10": ("maybe", "no", "yes"),
}
"""The words that answers to each task are made of."""


@dataclasses.dataclass(frozen=True)
class Story:
    """One question and what was told before it.

    Args:
        facts: sentences, in the order they happened.
        question: about them.
        answer: one of the task's labels, or several joined by commas.
        support: which facts the answer rests on, counted from 0.
    """

    facts: tuple[str, ...]
    question: str
    answer: str
    support: tuple[int, ...]


def check_task(task: str) -> None:
    """Refuse a task that there is not."""
    if task not in LABELS:
        raise TitansError(f'there is no task "{task}": expected one of {", ".join(LABELS)}')


def find_stories(folder: Path, task: str, part: str = "test") -> Path:
    """Find the official file of a task, as `qa1_single-supporting-fact_test.txt`, compressed or not.

    Args:
        folder: where the files are, for example `tasks_1-20_v1-2/en-10k`.
        task: qa1, qa2, ….
        part: "test" or "train".

    Returns:
        The file.

    Raises:
        TitansError: there is none, or several.
    """
    pattern = f"{task}_*_{part}.txt"
    found = sorted(path for path in folder.glob(f"{pattern}*") if without_compression(path).match(pattern))
    if len(found) != 1:
        raise TitansError(
            f"{folder} holds {len(found)} files {pattern}, expected one: give the folder of the official bAbI files of "
            "one language and size, as en-10k"
        )
    return found[0]


def read_stories(path: Path) -> list[Story]:
    """Read an official bAbI file.

    Each question makes one story: all facts told before it since the story began, without the questions in between.

    Args:
        path: a text file of numbered lines; the number 1 begins a story, and a line with tabs is a question, its
            answer and the numbers of the lines that it rests on.

    Returns:
        The stories, in the file's order.

    Raises:
        TitansError: a line is none of these; the message says which.
    """
    stories: list[Story] = []
    facts: list[str] = []
    index_of: dict[int, int] = {}
    lines = read_text(path).splitlines()
    for position, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            number, content = line.split(" ", 1)
            if int(number) == 1:
                facts, index_of = [], {}
            if "\t" in content:
                question, answer, support = content.split("\t")
                rests_on = tuple(index_of[int(word)] for word in support.split())
                stories.append(Story(tuple(facts), question.strip(), answer.strip(), rests_on))
            else:
                index_of[int(number)] = len(facts)
                facts.append(content.strip())
        except (ValueError, KeyError) as error:
            raise TitansError(
                f"{path}, line {position} is no line of a bAbI file: expected a number and a fact, or a number, a "
                "question, its answer and the numbers of earlier facts with tabs between them"
            ) from error
    if not stories:
        raise TitansError(
            f"{path} holds no questions: expected a bAbI file such as qa1_single-supporting-fact_test.txt"
        )
    return stories
