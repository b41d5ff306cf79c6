"""CSV files from anywhere, as a table of text and numbers: compression, encoding, separators and the header line."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
import warnings
from datetime import datetime
from pathlib import Path

from titans.error_text import first_line
from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.snapping import MOSTLY
from titans.io.text import encoding_of, open_bytes

_MISSING = (
    *("", "NA", "N/A", "n/a", "na", "#N/A", "<NA>", "NaN", "nan", "NAN", "-nan", "-NaN", "null", "NULL", "Null"),
    *("None", "none", "NONE", "missing", "#VALUE!", "#DIV/0!", "#REF!", "?", "-", "--", "."),
)
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SAMPLE_LINES, _SAMPLE_CHARACTERS = 100, 1 << 20
_NUMBER = r"[+-]?[\d.,]*\d[.,]?(?:[eE][+-]?\d+)?"
_DECIMAL_COMMA = r"[+-]?(?:\d*|[1-9]\d{0,2}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?"
_DECIMAL_POINT = r"[+-]?(?:\d*\.(?!\d{3}$)\d+|0\.\d+)"
_GROUP = re.compile(r"(?<![\w.:])[1-9]\d{0,2}\.\d{3}(?!\w)")
_LARGE = 100  # numbers without separators beside those of thousands; where all are smaller, the others may be decimals
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def read_cells(path: Path, notes: list[str]) -> tuple[pd.DataFrame, str]:
    """Read a CSV file, compressed or not.

    Args:
        path: the file; its name does not matter.
        notes: what was done to the data is added here.

    Returns:
        The cells: columns with unique names, of numbers where all cells are numbers or empty, otherwise of text. A
        column unique_id is always text. And the sign of decimals, a point or a comma.

    Raises:
        TitansError: the file cannot be read, is binary, is empty, has no header line or no rows, or its lines differ
            in length.
    """
    with open_bytes(path, "the file") as file:
        text = _without_comments(_decode(file.read(), notes), notes)
    separator, header = _layout(text)
    source = io.StringIO(text, newline=None)
    reader = csv.reader(source, delimiter=separator)
    for cells in reader:  # leaves the source behind the header
        if any(cell.strip() for cell in cells):
            break
    names = _names(header, notes)
    start = source.tell()

    def parse(decimal: str, kind: type | None = None) -> pd.DataFrame:
        source.seek(start)
        return _parse(source, names, separator, decimal, reader.line_num, kind)

    commas = separator != "," and "," in text
    texts = parse(".", str) if commas or _GROUP.search(text) else None
    decimal = "," if texts is not None and commas and _decimal_commas(texts) else "."
    if decimal == ",":
        notes.append(
            f"commas within numbers were read as decimal points ({_SEPARATORS[separator]} separate the columns)"
        )
    frame = parse(decimal)
    if frame.empty:
        raise TitansError("there is a header line but no row of data: expected one row for each time stamp")
    if texts is not None:
        _join_thousands(frame, texts, decimal, notes)
    return frame, decimal


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
    if "\0" in text or _UNPRINTABLE.search(text, 0, _SAMPLE_CHARACTERS):
        raise _binary(data)
    if not text.strip():
        raise TitansError("the file is empty: expected a header line and one row for each time stamp")
    return text


def _without_comments(text: str, notes: list[str]) -> str:
    """Blank the lines above the header that begin with #; a header that does so loses it."""
    above = re.match(r"(?:[ \t]*(?:#[^\r\n]*)?(?:\r\n?|\n))+", text)
    if above is None or "#" not in above[0]:
        return text
    lines, rest = above[0].splitlines(keepends=True), text[above.end() :]
    last = max(number for number, line in enumerate(lines) if line.strip())
    following = rest.splitlines()[0] if rest.strip() else ""
    header = ""
    for separator in _SEPARATORS:
        cells, names = following.split(separator), lines[last].split(separator)
        if len(cells) == len(names) > 1 and any(_is_number(cell) or _is_date(cell) for cell in map(str.strip, cells)):
            header = re.sub(r"^[ \t]*#+ *", "", lines[last])
    comments = sum(bool(line.strip()) for line in lines) - bool(header)
    if comments:
        notes.append(
            f"{comments} line{'s' * (comments > 1)} above the header that begin{'s' * (comments == 1)} with # left out"
        )
    blank = ["\n" for _ in lines]  # so that line numbers stay
    if header:
        blank[last] = header
    return "".join(blank) + rest


def _join_thousands(frame: pd.DataFrame, texts: pd.DataFrame, decimal: str, notes: list[str]) -> None:
    """Read points as separators of thousands where they are, or where commas are decimal points."""
    for name in texts.columns.drop([name for name in texts if name.lower() == "unique_id"]):
        numbers = _numbers(texts[name])
        meaning = _are_thousands(numbers, ".")
        if meaning or (meaning is None and decimal == ","):
            joined = texts[name].str.strip()
            joined[numbers.index] = numbers.str.replace(".", "", regex=False)
            with contextlib.suppress(ValueError):
                joined = pd.to_numeric(joined)
            frame[name] = joined
            notes.append(f'points in "{name}" were read as separators of thousands')
        elif meaning is None and not (pointed := numbers.str.contains(".", regex=False)).all():
            example = numbers[pointed].iloc[0]
            notes.append(
                f'points in "{name}" were read as decimal ones; if {example} is {example.replace(".", "")}, write that'
            )


def _decimal_commas(texts: pd.DataFrame) -> bool:
    """Whether commas within numbers are decimal points, as they are where they need not separate thousands."""
    columns = [_numbers(texts[name]) for name in texts]
    meanings = [
        meaning
        for numbers in columns
        if (meaning := _are_thousands(numbers, ",")) is not False or numbers.str.fullmatch(_DECIMAL_COMMA).any()
    ]
    if False in meanings or None not in meanings:
        return False in meanings
    return True not in meanings and not any(numbers.str.fullmatch(_DECIMAL_POINT).any() for numbers in columns)


def _numbers(column: pd.Series) -> pd.Series:
    """The cells that may be numbers, where most are."""
    cells = column.dropna().str.strip()
    numbers = cells[cells.str.fullmatch(_NUMBER)]
    return numbers if len(numbers) >= MOSTLY * len(cells) else numbers[:0]


def _are_thousands(numbers: pd.Series, sign: str) -> bool | None:
    """Whether points, or commas, within numbers separate thousands; None where they may be decimal points as well.

    They do where three digits follow each, and some number has two of them (1.234.567) or a decimal sign, too
    (1.234,5), or numbers without any stand beside some that end in 0 (950; 1.000): who writes decimals as 1.000 writes
    950.000, too. Small numbers say nothing (1; 1.250; 2).
    """
    sign, other = re.escape(sign), re.escape("," if sign == "." else ".")
    signed = numbers[numbers.str.contains(sign)]
    grouped = rf"[+-]?(?:\d+|[1-9]\d{{0,2}}(?:{sign}\d{{3}})+)(?:{other}\d*)?"
    if signed.empty or not numbers.str.fullmatch(grouped).all():
        return False
    if numbers.str.contains(rf"{sign}.*{sign}|{sign}.*{other}|{other}(?!\d{{3}}$)").any():
        return True
    bare = pd.to_numeric(numbers[numbers.str.fullmatch(r"[+-]?\d+")]).abs()
    if (bare >= 1000).any():
        return False
    return True if signed.str.endswith("0").any() and (bare >= _LARGE).any() else None


def _binary(data: bytes) -> TitansError:
    if data.startswith(b"PK"):
        return TitansError(
            "the file is a zip archive or an Excel workbook, not a CSV file: unpack it, or save it as CSV"
        )
    return TitansError("the file is not a text file: expected CSV text in UTF-8; save or export it as CSV (UTF-8)")


def _layout(text: str) -> tuple[str, list[str]]:
    """The separator, and the cells of the header line."""
    found = []
    for separator in _SEPARATORS:
        lines = _sample(text, separator)
        width = len(lines[0]) if lines else 0
        if width > 1:
            alike = sum(len(line) == width for line in lines) / len(lines)
            found.append((alike, width, separator, lines))
    if not found:
        kinds = ", ".join(_SEPARATORS.values())
        raise TitansError(
            f"the file has only one column: expected a time column and at least one of numbers, between {kinds}"
        )
    _, width, separator, lines = max(found, key=lambda item: item[:2])
    header = [cell.strip() for cell in lines[0]]
    if all(_is_number(cell) or _is_date(cell) for cell in header):
        raise TitansError(
            f'the file has no header line: its first line is data ("{separator.join(header)[:60]}"); add column names'
        )
    longer = [len(line) for line in lines[1:] if len(line) > width]
    if len(longer) > len(lines) / 2:
        raise TitansError(
            f"the file has {width} column names but {longer[0]} cells in most lines: name every column; if numbers "
            "have decimal commas, separate the columns by semicolons"
        )
    return separator, header


def _sample(text: str, separator: str) -> list[list[str]]:
    """The first lines that are not blank."""
    reader = csv.reader(io.StringIO(text[:_SAMPLE_CHARACTERS], newline=None), delimiter=separator)
    try:
        return list(itertools.islice((row for row in reader if any(cell.strip() for cell in row)), _SAMPLE_LINES))
    except csv.Error as error:
        raise TitansError(f"the file is not a CSV file ({error} in line {reader.line_num})") from error


def _names(header: list[str], notes: list[str]) -> list[str]:
    """Name every column, and each differently."""
    names: list[str] = []
    for position, given in enumerate(header, start=1):
        wanted = name = given or f"column {position}"
        for number in itertools.count(2):
            if name not in names and (name == given or name not in header):
                break
            name = f"{wanted}_{number}"
        if given and name != given:
            notes.append(f'a second column named "{given}" is called "{name}"')
        names.append(name)
    return names


def _parse(
    source: io.StringIO, names: list[str], separator: str, decimal: str, header_lines: int, kind: type | None = None
) -> pd.DataFrame:
    """Parse what follows the header; with a kind, all cells are of it."""
    texts = [name for name in names if name.lower() == "unique_id"]  # "NA" may be a name, and "007" is no number
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                source,
                sep=separator,
                decimal=decimal,
                header=None,
                names=names,
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
                keep_default_na=False,
                na_values={name: list(_MISSING) for name in names if name not in texts},
                dtype=kind or dict.fromkeys(texts, str),
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise TitansError(
            f"the file has lines that do not fit its header ({_relative(error, header_lines)})"
        ) from error
    return frame.dropna(how="all", ignore_index=True)


def _relative(error: Exception, header_lines: int) -> str:
    """Say pandas' reason with the line number of the file, not of the part after the header."""
    reason = first_line(error).removeprefix("Error tokenizing data. C error: ")
    if found := re.fullmatch(r"Expected (\d+) fields in line (\d+), saw (\d+)", reason):
        wanted, line, seen = map(int, found.groups())
        return f"line {line + header_lines} has {seen} cells, expected {wanted}"
    return "some have more cells" if isinstance(error, pd.errors.ParserWarning) else reason


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _is_date(cell: str) -> bool:
    try:
        datetime.fromisoformat(cell)
    except ValueError:
        return bool(re.match(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}", cell))
    return True
