"""CSV files from anywhere, as a table of text: compression, encoding, separators and the header line."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
import warnings
from pathlib import Path

from titans.error_text import first_line
from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.io.text import encoding_of, open_bytes

_MISSING = (
    *("", "NA", "N/A", "n/a", "na", "#N/A", "<NA>", "NaN", "nan", "NAN", "-nan", "-NaN", "null", "NULL", "Null"),
    *("None", "none", "NONE", "missing", "#VALUE!", "#DIV/0!", "#REF!", "?", "-", "--", "."),
)
_SEPARATORS = ",;\t|"
_FIRST_LINES, _FIRST_CHARACTERS = 1000, 1 << 20  # in which the header is, and what makes a file binary
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_DATA = re.compile(r"[-+]?\d[\d.,:/+\-\sTZeE]*")  # a number or a date


def read_cells(path: Path, notes: list[str]) -> tuple[pd.DataFrame, str]:
    """Read a CSV file, compressed or not, whatever its name.

    Returns:
        The cells: columns of text with unique names, NaN where nothing is given (in a column unique_id, everything is);
        and the separator of the columns.

    Raises:
        TitansError: the file cannot be read, is binary, is empty, has no header line or no rows, or its lines differ
            in length.
    """
    with open_bytes(path, "the file") as file:
        source = io.StringIO(_decode(file.read(), notes), newline=None)
    lines = list(itertools.islice(source, _FIRST_LINES))
    header, separator = _header(lines, notes)
    source.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            cells = pd.read_csv(
                source,
                sep=separator,
                skiprows=header,
                dtype=str,
                na_filter=False,
                index_col=False,
                skipinitialspace=True,
            )
    except pd.errors.ParserWarning as error:
        raise TitansError(
            f"the file has {len(_cells(lines[header], separator))} column names but more cells in its lines: name "
            "every column; if numbers have decimal commas, separate the columns by semicolons"
        ) from error
    except pd.errors.ParserError as error:
        reason = first_line(error).removeprefix("Error tokenizing data. C error: ")
        raise TitansError(f"the file has lines that do not fit its header ({reason})") from error
    cells.columns = cells.columns.str.strip()
    if lines[header].lstrip().startswith("#"):
        cells = cells.rename(columns={cells.columns[0]: cells.columns[0].lstrip("# ") or "#"})
    if not cells.columns.is_unique:
        raise TitansError(f'two columns are called "{cells.columns[cells.columns.duplicated()][0]}": rename one')
    cells = cells.apply(lambda column: column.str.strip())
    texts = [name for name in cells if name.lower() != "unique_id"]  # where "NA" may be a name
    cells[texts] = cells[texts].mask(cells[texts].isin(_MISSING))
    cells = cells.dropna(how="all", ignore_index=True)
    if cells.empty:
        raise TitansError("there is a header line but no row of data: expected one row for each time stamp")
    return cells, separator


def _decode(data: bytes, notes: list[str]) -> str:
    encoding, start = encoding_of(data)
    try:
        text = data[start:].decode(encoding)
    except UnicodeDecodeError:
        with contextlib.suppress(UnicodeDecodeError):
            encoding, text = "cp1252", data.decode("cp1252")
        if encoding != "cp1252" or "\0" in text:
            raise _binary(data) from None
        notes.append("the file is not UTF-8 and was read as Windows-1252 (Western European)")
    if "\0" in text or _UNPRINTABLE.search(text, 0, _FIRST_CHARACTERS):
        raise _binary(data)
    if not text.strip():
        raise TitansError("the file is empty: expected a header line and one row for each time stamp")
    return text


def _binary(data: bytes) -> TitansError:
    if data.startswith(b"PK"):
        return TitansError(
            "the file is a zip archive or an Excel workbook, not a CSV file: unpack it, or save it as CSV"
        )
    return TitansError("the file is not a text file: expected CSV text in UTF-8; save or export it as CSV (UTF-8)")


def _header(lines: list[str], notes: list[str]) -> tuple[int, str]:
    """Find the header: the first line without #, or the last with one where data follows it.

    Returns:
        Its place, and the separator that divides it and the line below into most cells, as many in both.
    """
    filled = [number for number, line in enumerate(lines) if line.strip()]
    comments = list(itertools.takewhile(lambda number: lines[number].lstrip().startswith("#"), filled))
    rest = filled[len(comments) :]
    if comments and rest and _DATA.match(lines[rest[0]]) and _divide(lines[comments[-1]], lines[rest[0]])[0]:
        rest.insert(0, comments.pop())
    if comments:
        s = "s" * (len(comments) > 1)
        notes.append(f"{len(comments)} line{s} above the header that begin{'' if s else 's'} with # left out")
    if not rest:
        raise TitansError("the file has no line that does not begin with #: expected a header line and rows below it")
    header = lines[rest[0]]
    _, width, separator = _divide(header, lines[rest[1]] if len(rest) > 1 else header)
    if width < 2:
        raise TitansError(
            "the file has only one column: expected a time column and at least one of numbers, between commas, "
            "semicolons, tabs or bars"
        )
    if all(_DATA.fullmatch(cell.strip()) for cell in _cells(header, separator)):
        raise TitansError(
            f'the file has no header line: its first line is data ("{header.strip()[:60]}"); add column names'
        )
    return rest[0], separator


def _divide(header: str, below: str) -> tuple[bool, int, str]:
    """Whether both lines have as many cells, more than one; how many the header has; and the separator."""
    widths = [(len(_cells(header, sign)), len(_cells(below, sign)), sign) for sign in _SEPARATORS]
    return max(((width == other > 1, width, sign) for width, other, sign in widths), key=lambda found: found[:2])


def _cells(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
