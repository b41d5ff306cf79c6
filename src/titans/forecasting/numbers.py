"""Numbers from columns of text or of a frame: decimal signs, thousands, currencies, infinite and missing values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.sentences import counted, is_are, listed, was_were

LIMIT = 1e30
"""Larger numbers are refused: their squares and sums leave float32, which models compute in."""
MOSTLY = 0.9
"""The part of what is given that must be numbers, or times, for a column to be one of these."""

Floats = npt.NDArray[np.float64]
_NUMBER = r"[+-]?[\d.,]*\d[.,]?(?:[eE][+-]?\d+)?"
_UNIT = r"(?:^|(?<=^[+-]))[$€£¥]\s*|\s*[$€£¥%]$|(?<=\d)[\s’'](?=\d{3}(?!\d))"  # and blanks between thousands
_LARGE = 100  # numbers without signs beside those with thousands; where all are smaller, the others may be decimals


def parse_numbers(cells: pd.DataFrame, separator: str, notes: list[str]) -> pd.DataFrame:
    """Read the columns of a text file of which nine in ten entries are numbers; what is missing or unreadable is NaN.

    Points and commas are read as decimal ones or as separators of thousands, see `_decimal_sign`; in a column that does
    not say which, as in the other columns. Where the file's separator is no comma, commas are decimal if none says.
    """
    texts = {name: _without_units(cells[name]) for name in cells}
    numbers = {name: text[text.str.fullmatch(_NUMBER, na=False)] for name, text in texts.items()}
    signs = {
        name: _decimal_sign(given) for name, given in numbers.items() if len(given) >= MOSTLY * texts[name].count()
    }
    commas = [name for name in signs if numbers[name].str.contains(",").any()]
    unsure = separator != "," and "." not in signs.values() and any(signs[name] is None for name in commas)
    usual = "," if unsure or "," in signs.values() else "."
    found, decimal_commas = {}, []
    for name, text in texts.items():
        sign = signs.get(name) or usual
        values = _to_floats(text, sign)
        unreadable = cells[name][values.isna() & text.notna()]
        if len(unreadable) > (1 - MOSTLY) * text.count():
            continue
        found[name] = values
        if name in commas and sign == ",":
            decimal_commas.append(f'"{name}"')
        notes += [*_what_was_read(name, cells[name], text, numbers[name], sign, sure=signs.get(name) is not None)]
        if len(unreadable):
            notes.append(
                f'{counted(len(unreadable), "entry", "entries")} of "{name}" that {is_are(len(unreadable))} no number '
                f'(such as "{unreadable.iloc[0]}") {was_were(len(unreadable))} treated as missing'
            )
    if decimal_commas:
        notes.append(f"commas within numbers were read as decimal points ({listed(decimal_commas)})")
    return pd.DataFrame(found, index=cells.index)


def to_numbers(column: pd.Series) -> Floats | None:
    """Read a column of a frame, also of truth values or text, as numbers `[n]`; NaN where one is missing or unreadable.

    None where less than nine in ten of the entries are numbers.
    """
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    given = column.dropna()
    if pd.api.types.infer_dtype(given) not in ("string", "mixed", "mixed-integer", "decimal", "integer", "floating"):
        return None if len(given) else np.full(len(column), np.nan)
    text = column.astype(object).where(column.notna()).astype("str").str.strip()
    numbers = pd.to_numeric(text, errors="coerce")
    return np.asarray(numbers, dtype=np.float64) if numbers.count() >= MOSTLY * len(given) else None


def without_infinite(values: Floats, names: Sequence[str], notes: list[str]) -> Floats:
    """Turn infinite numbers in the columns `[n, C]` into missing ones; raise TitansError for those above `LIMIT`."""
    infinite = np.isinf(values)
    if infinite.any():
        found = [f"{name}: {count:,}" for name, count in zip(names, infinite.sum(0), strict=True) if count]
        notes.append(f"{counted(int(infinite.sum()), 'infinite value')} treated as missing ({listed(found)})")
        values = np.where(infinite, np.nan, values)
    huge = np.abs(values) > LIMIT
    if huge.any():
        row, column = np.argwhere(huge)[0]
        raise TitansError(
            f'the column "{names[column]}" holds {values[row, column]:g}, larger than {LIMIT:g}: leave the cell empty '
            "if this marks a missing value, or divide the column by a constant"
        )
    return values


def _without_units(text: pd.Series) -> pd.Series:
    some = text.str.contains(r"[$€£¥%\s’']", na=False).any()
    return text.str.replace(_UNIT, "", regex=True) if some else text


def _decimal_sign(numbers: pd.Series) -> str | None:
    """The decimal sign of a column, a point or a comma; None where it has neither, or one that may mean either.

    The other sign separates thousands. It does where three digits follow each, and some number has two of them
    (1.234.567) or a decimal sign, too (1.234,5), or numbers without any stand beside some that end in 0 (950; 1.000):
    who writes decimals as 1.000 writes 950.000, too. Small numbers say nothing (1; 1.250; 2).
    """
    for sign, other in (",.", ".,"):
        given = numbers[numbers.str.contains(sign, regex=False)]
        if given.empty:
            continue
        if not numbers.str.fullmatch(_grouped(sign, other)).all():
            return sign
        sign_, other_ = re.escape(sign), re.escape(other)
        if numbers.str.contains(rf"{sign_}.*{sign_}|{sign_}.*{other_}|{other_}(?!\d{{3}}$)").any():
            return other
        bare = pd.to_numeric(numbers[numbers.str.fullmatch(r"[+-]?\d+")]).abs()
        if (bare >= 1000).any():
            return sign
        if given.str.endswith("0").any() and (bare >= _LARGE).any():
            return other
    return None


def _grouped(thousands: str, decimal: str) -> str:
    """What numbers look like, plain or with separators of thousands."""
    return rf"[+-]?(?:\d*|[1-9]\d{{0,2}}(?:{re.escape(thousands)}\d{{3}})+)(?:{re.escape(decimal)}\d*)?"


def _to_floats(text: pd.Series, decimal: str) -> pd.Series:
    """Numbers of text; NaN where it is none."""
    thousands = "." if decimal == "," else ","
    if text.str.contains(thousands, regex=False).any():
        grouped = text.str.fullmatch(_grouped(thousands, decimal), na=False)
        text = text.mask(grouped, text.str.replace(thousands, "", regex=False))
        text = text.mask(text.str.contains(thousands, regex=False, na=False))
    if decimal == ",":
        text = text.str.replace(",", ".", regex=False)
    numbers = pd.to_numeric(text, errors="coerce").astype(np.float64)
    return text.str.lower().map({"true": 1.0, "false": 0.0}) if numbers.isna().all() else numbers


def _what_was_read(
    name: str, cells: pd.Series, text: pd.Series, numbers: pd.Series, decimal: str, *, sure: bool
) -> Iterator[str]:
    """Say what was left out of numbers, and what points and commas were read as."""
    with_unit = cells[(cells != text) & cells.notna()]
    if len(with_unit):
        yield f'signs beside the numbers of "{name}" were left out (such as "{with_unit.iloc[0]}")'
    thousands, word = (".", "points") if decimal == "," else (",", "commas")
    if numbers.str.contains(thousands, regex=False).any():
        yield f'{word} in "{name}" were read as separators of thousands'
    pointed = numbers.str.contains(".", regex=False)
    if not sure and decimal == "." and pointed.any() and not pointed.all():
        example = numbers[pointed].iloc[0]
        yield f'points in "{name}" were read as decimal ones; if {example} is {example.replace(".", "")}, write that'
