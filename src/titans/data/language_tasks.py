"""Documents of lm-evaluation-harness tasks from local files, with the fields that the stock tasks ask for."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from titans.errors import TitansError
from titans.io.text import read_text, text_lines, without_compression

Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class LocalTask:
    """The documents of one task.

    Args:
        path: the file they come from.
        rows: one dictionary a document, with the fields of the stock data set.
        deviation: in what they differ from the stock data set; empty where in nothing.
    """

    path: Path
    rows: Rows
    deviation: str = ""


def local_task(folder: Path, name: str) -> LocalTask | None:
    """Find and read the documents of a task in a folder, at any depth.

    Of any task, `NAME.jsonl` is taken as it is: one document a line with the fields of the stock data set. Besides:
    PIQA as `piqa_valid.jsonl` with `piqa_valid-labels.lst`, HellaSwag as `hellaswag_val*.txt` of six lines a
    document, LAMBADA as `lambada_test.jsonl`, WinoGrande and ARC as lists of instructions in `winogrande*.json`,
    `ARC-Easy*.json` and `ARC-Challenge*.json`, WikiText as `wikitext-2*.txt`. All may be compressed, as `.txt.bz2`.

    Args:
        folder: where to look.
        name: what lm-evaluation-harness calls the task.

    Returns:
        The documents, or None where the folder has none.

    Raises:
        TitansError: there are several files for the task, or the file is not as described.
    """
    path = _only_file(folder, name, (f"{name}.jsonl", *FORMATS.get(name, ((), None))[0]))
    if path is None:
        return None
    read = _stock if without_compression(path).name == f"{name}.jsonl" else FORMATS[name][1]
    try:
        task = read(path)
    except (EOFError, KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, TitansError) or getattr(error, "filename", None) is not None:
            raise  # both say already which file it is
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise TitansError(f"{path} is no {name} file as expected: {reason}") from error
    if not task.rows:
        raise TitansError(f"{path} holds no document")
    return task


def local_names(folder: Path) -> set[str]:
    """Return the names of the tasks of which a folder may have documents, at any depth: see `local_task`."""
    files = [without_compression(path) for path in folder.rglob("*") if path.is_file()]
    alike = {name for name, (patterns, _) in FORMATS.items() if any(f.match(p) for f in files for p in patterns)}
    return alike | {file.stem for file in files if file.suffix == ".jsonl"}


def local_rows(folder: Path, file: str) -> Rows | None:
    """Read other documents of a task, such as the examples of its prompts.

    Args:
        folder: where to look, at any depth.
        file: what the file is called: one document a line with the fields of the stock data set.

    Returns:
        The documents, or None where the folder has no such file.

    Raises:
        TitansError: there are several such files, or the file is not as described.
    """
    path = _only_file(folder, file, (file,))
    if path is None:
        return None
    rows = _json_lines(path)
    if not rows:
        raise TitansError(f"{path} holds no document")
    return rows


def _only_file(folder: Path, what: str, patterns: Iterable[str]) -> Path | None:
    alike = ((pattern, path) for pattern in patterns for path in folder.rglob(f"{pattern}*"))
    found = sorted({path for pattern, path in alike if path.is_file() and without_compression(path).match(pattern)})
    if len(found) > 1:
        raise TitansError(
            f"{folder} holds several files for {what} ({', '.join(str(path.relative_to(folder)) for path in found)}): "
            "give a folder with one of them"
        )
    return found[0] if found else None


def _stock(path: Path) -> LocalTask:
    return LocalTask(path, _json_lines(path))


def _json_lines(path: Path) -> Rows:
    rows = []
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TitansError(f"{path}, line {number}, is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise TitansError(f"{path}, line {number}, is {type(row).__name__}, expected an object with the fields")
        rows.append(row)
    return rows


def _lambada(path: Path) -> LocalTask:
    return LocalTask(path, [{"text": row["text"]} for row in _json_lines(path)])


def _piqa(path: Path) -> LocalTask:
    labels_path = path.with_name(f"{without_compression(path).stem}-labels.lst")
    labels = [int(label) for label in read_text(labels_path).split()]
    rows = _json_lines(path)
    if len(labels) != len(rows) or not set(labels) <= {0, 1}:
        raise TitansError(f"{labels_path} holds {len(labels)} labels, expected {len(rows)}, each 0 or 1")
    fields = ("goal", "sol1", "sol2")
    return LocalTask(
        path,
        [{**{key: row[key] for key in fields}, "label": label} for row, label in zip(rows, labels, strict=True)],
    )


def _hellaswag(path: Path) -> LocalTask:
    """Read six lines a document: activity and context, label, four endings."""
    lines = read_text(path).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if len(lines) % 6:
        raise TitansError(f"{path} has {len(lines)} lines, expected six a document: context, label, four endings")
    rows = []
    for start in range(0, len(lines), 6):
        context, label, *endings = lines[start : start + 6]
        activity, colon, text = context.partition(": ")
        if not colon or label.strip() not in ("0", "1", "2", "3"):
            raise TitansError(
                f'{path}, line {start + 1}, starts no document: expected "activity: context", then a label of 0 to 3'
            )
        first, second = _unfinished_sentence(text)
        rows.append(
            {"activity_label": activity, "ctx_a": first, "ctx_b": second, "endings": endings, "label": label.strip()}
        )
    return LocalTask(path, rows, "HellaSwag's contexts cut in two at the last sentence, as its file has them joined")


def _unfinished_sentence(text: str) -> tuple[str, str]:
    """Cut off what follows the last whole sentence: the stock task writes its first letter as a capital."""
    whole = re.match(r".*[.!?][\"')\]]*\s+", text, re.DOTALL)
    cut = whole.end() if whole and not text.rstrip().endswith((".", "!", "?", '"', "'", ")")) else len(text)
    return text[:cut].rstrip(), text[cut:]


def _instructions(path: Path) -> Iterator[tuple[str, str]]:
    """Read instructions and the names of their right answers."""
    entries = json.loads(read_text(path))
    if not isinstance(entries, list):
        raise TitansError(f"{path} is no list of instructions")
    for entry in entries:
        yield entry["instruction"], entry["answer"]


_WINOGRANDE = re.compile(r"[^:]*: (.*?)\s*\n\nOption1: (.*) Option2: (.*?)\s*Answer format: .*", re.DOTALL)
_ARC = re.compile(r"[^:]*: (.*?)\s*\n\n(Answer1: .*?)\s*\n\nAnswer format: (.*)", re.DOTALL)


def _winogrande(path: Path) -> LocalTask:
    rows = []
    for number, (instruction, answer) in enumerate(_instructions(path), start=1):
        found = _WINOGRANDE.fullmatch(instruction)
        if found is None or "_" not in found[1] or answer not in ("option1", "option2"):
            raise TitansError(f"{path}, entry {number}, is no sentence with a blank (_) and two options")
        sentence, first, second = found.groups()
        rows.append({"sentence": sentence, "option1": first, "option2": second, "answer": answer[-1]})
    return LocalTask(path, rows, "WinoGrande's sentences and options recovered from instructions")


def _arc(path: Path) -> LocalTask:
    rows = []
    for number, (instruction, answer) in enumerate(_instructions(path), start=1):
        found = _ARC.fullmatch(instruction)
        names = [] if found is None else found[3].strip().split("/")
        texts = [] if found is None else re.split(r"\s*\bAnswer\d: ", found[2])[1:]
        if found is None or len(names) != len(texts) or answer not in names:
            raise TitansError(f"{path}, entry {number}, is no question with answers and the right one among them")
        rows.append({"question": found[1], "choices": {"text": texts, "label": names}, "answerKey": answer})
    return LocalTask(path, rows, "ARC's questions and answers recovered from instructions")


_TITLE = re.compile(r" = [^=].* = \n")


def _wikitext(path: Path) -> LocalTask:
    """Cut the text into its articles: the stock task reads one after the other."""
    articles: list[str] = []
    blank = True
    for line in text_lines(path):
        if blank and _TITLE.fullmatch(line):
            articles.append("")
        if articles:
            articles[-1] += line
        blank = not line.strip()
    if not articles:
        raise TitansError(f'{path} holds no article: expected lines like " = Title = "')
    rare = ", with <unk> for rare words" if any("<unk>" in article for article in articles) else ""
    return LocalTask(
        path, [{"page": article} for article in articles], f"WikiText: {path.name}{rare}, not the raw test set"
    )


FORMATS: dict[str, tuple[tuple[str, ...], Callable[[Path], LocalTask]]] = {
    "arc_challenge": (("ARC-Challenge*.json",), _arc),
    "arc_easy": (("ARC-Easy*.json",), _arc),
    "hellaswag": (("hellaswag_val*.txt",), _hellaswag),
    "lambada_openai": (("lambada_test.jsonl",), _lambada),
    "piqa": (("piqa_valid.jsonl",), _piqa),
    "wikitext": (("wikitext-2*.txt",), _wikitext),
    "winogrande": (("winogrande*.json",), _winogrande),
}
