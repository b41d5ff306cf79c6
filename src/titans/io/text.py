"""Texts in files as people have them: compressed or not, and in UTF-8 unless a byte order mark says otherwise."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from titans.errors import TitansError
from titans.extras import missing

_MARKS = (  # UTF-32 first: its mark begins like that of UTF-16
    *((codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF8, "utf-8")),
    *((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")),
)
_READ_BYTES = 1 << 20
_MOST_TIMES = 4  # that a file may be compressed; there are some that hold themselves
_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
_NO_TEXT = {
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"%PDF-": "a PDF",
}
_TAR = slice(257, 262)


def without_compression(path: Path) -> Path:
    """Take the endings of compression off a path: `books.JSONL.gz` becomes `books.JSONL`."""
    while path.suffix.lower() in _ENDINGS:
        path = path.with_suffix("")
    return path


def kind(path: Path) -> str:
    """Tell what a file's name says that it holds: `.jsonl` for `books.JSONL.gz`, or nothing."""
    return without_compression(path).suffix.lower()


@contextlib.contextmanager
def open_bytes(path: Path, name: str | None = None) -> Iterator[BinaryIO]:
    """Open a file, decompressed where its content is that of gzip, bzip2, xz or zstd.

    Args:
        path: the file.
        name: names it in messages. Default: its path.

    Yields:
        Its bytes, buffered.

    Raises:
        TitansError: it cannot be read or decompressed, also while it is read in the body, or is compressed more than
            four times over.
    """
    name = str(path) if name is None else name
    try:
        with contextlib.ExitStack() as opened:
            file: Any = opened.enter_context(path.open("rb"))
            times = 0
            while unpack := next((unpack for magic, unpack in _COMPRESSIONS if magic.match(file.peek(10))), None):
                if (times := times + 1) > _MOST_TIMES:
                    raise TitansError(f"{name} is compressed more than {_MOST_TIMES} times over: unpack it first")
                file = opened.enter_context(io.BufferedReader(opened.enter_context(unpack(file))))
            yield file
    except OSError as error:
        if error.errno is not None:
            raise TitansError(f"cannot read {name}: {error.strerror}") from error
        raise _damaged(name, error) from error  # what decompressing raises has no number
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise _damaged(name, error) from error


def text_blocks(path: Path) -> Iterator[str]:
    """Read a text in constant memory.

    Args:
        path: the file, compressed or not.

    Yields:
        The text without its byte order mark, in consecutive parts.

    Raises:
        TitansError: the file cannot be read or is no text in UTF-8; the message says at which byte.
    """
    with open_bytes(path) as file:
        encoding, position = _start(file, path)
        decoder = codecs.getincrementaldecoder(encoding)()
        undecoded = 0
        try:
            while raw := file.read(_READ_BYTES):
                undecoded = len(decoder.getstate()[0])
                if text := decoder.decode(raw):
                    yield text
                position += len(raw)
            undecoded = len(decoder.getstate()[0])
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _undecodable(str(path), encoding, position - undecoded + error.start) from error


def text_lines(path: Path) -> Iterator[str]:
    """Read the lines of a text in constant memory.

    Args:
        path: the file, compressed or not.

    Yields:
        Each line with its line feed; no other character ends one.

    Raises:
        TitansError: see `text_blocks`; the message says in which line.
    """
    with open_bytes(path) as file:
        encoding, _ = _start(file, path)
        lines = file if encoding == "utf-8" else map(str.encode, io.TextIOWrapper(file, encoding, newline="\n"))
        number = 0
        try:
            for line in lines:
                number += 1
                yield line.decode()
        except UnicodeDecodeError as error:
            where = f"line {number}" if encoding == "utf-8" else f"after line {number}"
            raise _undecodable(f"{path}, {where}", encoding, error.start) from error


def read_text(path: Path) -> str:
    """Read a whole text, see `text_blocks`."""
    return "".join(text_blocks(path))


def decode(data: bytes, name: str) -> str:
    """Decode a whole text, without its byte order mark.

    Args:
        data: the bytes.
        name: names the text in messages.

    Returns:
        The text.

    Raises:
        TitansError: it is no text in UTF-8, and no mark says otherwise.
    """
    encoding, start = encoding_of(data)
    try:
        return data[start:].decode(encoding)
    except UnicodeDecodeError as error:
        raise _undecodable(name, encoding, start + error.start) from error


def encoding_of(data: bytes) -> tuple[str, int]:
    """Tell the encoding of a text from its byte order mark, and how many bytes that takes; without one, UTF-8."""
    return next(((encoding, len(mark)) for mark, encoding in _MARKS if data.startswith(mark)), ("utf-8", 0))


def _open_zstd(file: BinaryIO) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise missing(error, "data", "reading files compressed by zstd") from error
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")


_COMPRESSIONS: tuple[tuple[re.Pattern[bytes], Callable[[BinaryIO], Any]], ...] = (
    (re.compile(rb"\x1f\x8b"), lambda file: gzip.GzipFile(fileobj=file, mode="rb")),
    (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.BZ2File),  # with a block or none
    (re.compile(rb"\xfd7zXZ\0"), lzma.LZMAFile),
    (re.compile(rb"\x28\xb5\x2f\xfd"), _open_zstd),
)


def _damaged(name: str, error: Exception) -> TitansError:
    return TitansError(f"cannot decompress {name} ({error}): it is damaged or cut short")


def _start(file: Any, path: Path) -> tuple[str, int]:
    """Leave the byte order mark behind; the encoding and the bytes of the mark."""
    head = file.peek(512)
    if head and path.suffix.lower() in _ENDINGS and isinstance(file.raw, io.FileIO):
        raise TitansError(f"cannot decompress {path}: it is not compressed; download it again, or rename it")
    found = next((name for magic, name in _NO_TEXT.items() if head.startswith(magic)), None)
    if found or head[_TAR] == b"ustar":
        raise TitansError(f"{path} is {found or 'a tar archive'}, not a text: unpack or convert it, or leave it out")
    encoding, length = encoding_of(head)
    file.read(length)
    if b"\0" in head[:4] and not length:  # no text begins so, but UTF-16 does
        raise _undecodable(str(path), encoding, head.index(b"\0"))
    return encoding, length


def _undecodable(where: str, encoding: str, position: int) -> TitansError:
    named = encoding.upper().removesuffix("-LE").removesuffix("-BE")
    return TitansError(
        f"{where} is not {named} text (byte {position}): convert the file to UTF-8, or leave it out with a glob such "
        "as folder/**/*.txt"
    )
