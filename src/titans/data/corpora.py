"""Documents from text files, folders, globs, jsonl, parquet and Hugging Face hub ids."""

from __future__ import annotations

import dataclasses
import glob
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from titans.data.hub import hub_or_cache
from titans.error_text import first_line
from titans.errors import TitansError
from titans.extras import missing
from titans.io.text import kind, open_bytes, read_text, text_blocks, text_lines


@dataclasses.dataclass(frozen=True)
class Document:
    """One document: the unit after which the memory forgets.

    Args:
        name: where it came from, for messages.
        blocks: opens the text and yields it in consecutive parts, so that a document may be larger than
            memory.
    """

    name: str
    blocks: Callable[[], Iterator[str]]

    def text(self) -> str:
        """The whole text."""
        return "".join(self.blocks())


@dataclasses.dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face hub, streamed.

    Args:
        hub: its id, for example "HuggingFaceFW/fineweb-edu".
        name: its configuration, where it has several. Default: none.
        split: which split to read. Default "train".
    """

    hub: str
    name: str | None = None
    split: str = "train"


Source = str | os.PathLike[str] | HubSource


def documents(
    sources: Source | Sequence[Source],
    *,
    text_field: str = "text",
) -> Iterator[Document]:
    """Read documents from one source or several, one after the other, in a fixed order.

    A text file is one document; a folder gives its files, recursively, without hidden ones and caches; a glob gives
    the files it matches (`**` recurses). A line of a .jsonl file, a row of a .parquet file and a record of a .json file
    (JSON lines, a list of objects, or one object with the text) are one document each. All may be compressed by gzip,
    bzip2, xz or zstd, and texts begin with a byte order mark. A string "owner/name" that is no path is a hub id. Empty
    documents are skipped.

    Args:
        sources: files, folders, globs, hub ids or `HubSource`s.
        text_field: the JSON key or the column that holds the text. Default "text".

    Yields:
        The documents.

    Raises:
        TitansError: a source does not exist, cannot be read, is not UTF-8 or holds no text; the message names
            the file and the position.
    """
    for source in [sources] if isinstance(sources, str | os.PathLike | HubSource) else sources:
        empty = True
        for document in _read(source, text_field):
            empty = False
            yield document
        if empty:
            raise TitansError(f"{_describe(source)} holds no text: expected at least one non-empty document")


def local_files(source: Source) -> list[Path] | None:
    """Find the files of a source.

    Args:
        source: a file, a folder, a glob or a hub id.

    Returns:
        The files in reading order, or None for a hub id.

    Raises:
        TitansError: the source is neither.
    """
    if isinstance(source, HubSource):
        return None
    path = Path(source)
    if path.is_dir():
        return _files_below(path)
    if path.exists():
        return [path]
    if glob.has_magic(str(source)):
        found = sorted(Path(match) for match in glob.glob(str(source), recursive=True) if os.path.isfile(match))
        if found:
            return found
        raise TitansError(f'no file matches "{source}": check the pattern and the folder it is run from')
    if isinstance(source, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not path.suffix:
        return None
    raise TitansError(f'"{source}" does not exist: expected a file, a folder, a glob or a hub id like owner/name')


def _files_below(folder: Path) -> list[Path]:
    files = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        files += [Path(root, name) for name in sorted(names) if not name.startswith(".")]
    return files


def _read(source: Source, text_field: str) -> Iterator[Document]:
    files = local_files(source)
    if files is None:
        hub = source if isinstance(source, HubSource) else HubSource(str(source))
        yield from _hub_documents(hub, text_field)
        return
    for path in files:
        try:
            yield from _file_documents(path, text_field)
        except OSError as error:
            raise TitansError(f"cannot read {path}: {error.strerror or error}") from error


def _file_documents(path: Path, text_field: str) -> Iterator[Document]:
    match kind(path):
        case ".jsonl" | ".ndjson":
            yield from _jsonl_documents(path, text_field)
        case ".parquet":
            yield from _parquet_documents(path, text_field)
        case ".json" if (records := _json_records(path, text_field)) is not None:
            yield from records
        case _:
            if any(text_blocks(path)):
                yield Document(str(path), lambda: text_blocks(path))


def _jsonl_documents(path: Path, text_field: str) -> Iterator[Document]:
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TitansError(f"{where} is not JSON ({_json_reason(error)})") from error
        yield from _record_documents(where, record, text_field)


def _json_records(path: Path, text_field: str) -> Iterator[Document] | None:
    """Read a .json file as records, where it is JSON lines, a list of objects or one with a text; None: it is not."""
    first = next((line for line in text_lines(path) if line.strip()), "").strip()
    if isinstance(_parsed(first), dict):
        return _jsonl_documents(path, text_field)
    content = _parsed(read_text(path)) if first[:1] in ("[", "{") else None
    if isinstance(content, dict) and text_field in content:
        return _record_documents(str(path), content, text_field)
    if not isinstance(content, list) or not content or not all(isinstance(record, dict) for record in content):
        return None
    return itertools.chain.from_iterable(
        _record_documents(f"{path}, entry {number}", record, text_field)
        for number, record in enumerate(content, start=1)
    )


def _parsed(text: str) -> Any:
    """Return the content of a JSON text, or None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "its brackets are nested too deeply" if isinstance(error, RecursionError) else first_line(error)


def _parquet_documents(path: Path, text_field: str) -> Iterator[Document]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise missing(error, "data", f"reading {path}") from error
    try:
        with open_bytes(path) as opened, pyarrow.parquet.ParquetFile(_seekable(opened, path)) as file:
            columns = file.schema_arrow.names
            if text_field not in columns:
                raise _no_field(str(path), text_field, columns)
            row = 0
            for batch in file.iter_batches(batch_size=256, columns=[text_field]):
                for record in batch.to_pylist():
                    yield from _record_documents(f"{path}, row {row}", record, text_field)
                    row += 1
    except pyarrow.ArrowException as error:
        raise TitansError(f"{path} is not a readable parquet file ({first_line(error)})") from error


def _seekable(file: BinaryIO, path: Path) -> BinaryIO | Path:
    """Return what parquet's reader takes, which begins at the end: a compressed file has to be read whole."""
    return path if path.suffix.lower() == ".parquet" else io.BytesIO(file.read())


def _hub_documents(source: HubSource, text_field: str) -> Iterator[Document]:
    try:
        import datasets
    except ImportError as error:
        raise missing(error, "data", f'"{source.hub}" is no file or folder here: reading it as a hub id') from error
    try:
        with hub_or_cache():
            rows: Iterable[Any] = datasets.load_dataset(source.hub, source.name, split=source.split, streaming=True)
        for row, record in enumerate(rows):
            yield from _record_documents(f"{source.hub}, row {row}", record, text_field)
    except TitansError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise TitansError(
            f'cannot read {_describe(source)} ({first_line(error)}), and no file or folder is named "{source.hub}"'
        ) from error


def _record_documents(where: str, record: object, text_field: str) -> Iterator[Document]:
    if not isinstance(record, dict) or text_field not in record:
        raise _no_field(where, text_field, list(record) if isinstance(record, dict) else [])
    text = record[text_field]
    if not isinstance(text, str):
        raise TitansError(f'{where}: field "{text_field}" is {type(text).__name__}, expected a string')
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair, which is no character
        raise TitansError(f"{where}: the text holds half a surrogate pair (character {error.start})") from error
    if text:
        yield Document(where, lambda: iter((text,)))


def _no_field(where: str, text_field: str, fields: Sequence[object]) -> TitansError:
    found = ", ".join(map(str, fields)) or "none"
    return TitansError(
        f'{where} has no field "{text_field}" (fields: {found}): name the right one, as data.text_field in a recipe or '
        "as --text-field to titans evaluate"
    )


def _describe(source: Source) -> str:
    if not isinstance(source, HubSource):
        return str(source)
    return f"the hub data set {source.hub}" + (f" ({source.name})" if source.name else "") + f", split {source.split}"
