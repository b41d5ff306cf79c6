"""RULER (Hsieh et al., 2024): needles, variable tracking and word counts, of any length in a model's own tokens.

Left out are its two question-answering tasks, which need the documents of SQuAD and HotpotQA.
"""

from __future__ import annotations

from collections.abc import Callable

from titans.data.books import Words
from titans.data.ruler.counting import CommonWords, FrequentWords
from titans.data.ruler.needles import NEEDLES, NeedleTask
from titans.data.ruler.task import RulerSample, RulerTask
from titans.data.ruler.tracking import VariableTracking
from titans.errors import TitansError

__all__ = ["RULER_TASKS", "RulerSample", "RulerTask", "canonical", "make_ruler_task", "needs_books"]

RULER_TASKS = (*NEEDLES, "vt", "cwe", "fwe")
"""All tasks; pk, n and w are what RULER calls niah_single_1, niah_single_2 and niah_single_3."""

_SYNONYMS = {"niah_single_1": "pk", "niah_single_2": "n", "niah_single_3": "w"}


def canonical(name: str) -> str:
    """Return the name by which a task goes here.

    Raises:
        TitansError: there is no such task.
    """
    name = _SYNONYMS.get(name, name)
    if name not in RULER_TASKS:
        raise TitansError(f'there is no RULER task "{name}": expected {", ".join(RULER_TASKS)}')
    return name


def needs_books(name: str) -> bool:
    """Whether a task hides its needles in books or essays."""
    return name in NEEDLES and NEEDLES[name].haystack == "books"


def make_ruler_task(name: str, count: Callable[[str], int], words: Words | None = None) -> RulerTask:
    """Return what makes the samples of a task for one tokenizer.

    Args:
        name: one of `RULER_TASKS`, or RULER's name for it.
        count: counts the tokens of a text, without special tokens.
        words: the books or essays of the tasks that need them; the others take none.

    Raises:
        TitansError: there is no such task, there is no text for it, or wonderwords is not installed.
    """
    name = canonical(name)
    if name == "vt":
        return VariableTracking(count)
    if name == "cwe":
        return CommonWords(count)
    if name == "fwe":
        return FrequentWords(count)
    return NeedleTask(name, count, words)
