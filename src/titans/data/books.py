"""Books and essays as words and sentences: Project Gutenberg's frame taken off, white space made single."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

from titans.data.corpora import Source, documents
from titans.errors import TitansError
from titans.io.text import kind, read_text

_START = re.compile(r"\*{3}\s*START OF TH(?:E|IS) PROJECT GUTENBERG[^*]*\*{3}", re.IGNORECASE)
_END = re.compile(r"^(?:\*{3}\s*END OF TH(?:E|IS)|End of (?:the |this )?)\s*PROJECT GUTENBERG", re.I | re.M)
_CLOSING, _OPENING = "\"'\u201d\u2019)]_", "\"'\u201c\u2018([_\u2014-"  # quotes, straight and curly; brackets; dashes
_LAST = re.compile(rf"[.!?]+[{re.escape(_CLOSING)}]*$")  # the end of a word that ends a sentence
_FIRST = re.compile(rf"[{re.escape(_OPENING)}]*[A-Z0-9]")  # the start of a word that begins one
_ABBREVIATION = re.compile(
    rf"[{re.escape(_OPENING)}]*(?:[A-Z]|Mr|Mrs|Ms|Messrs|Dr|St|Prof|Rev|Hon|Capt|Col|Gen|Lt|No|Esq|vs|etc)\.$"
)


@dataclasses.dataclass(frozen=True)
class Words:
    """A text, word by word.

    Args:
        words: parts between white space, at least one.
        starts: the numbers of the words that begin a sentence, from 0 up.
        gutenberg: whether the frame of Project Gutenberg was found and taken off.
        essays: whether all of it is in the form in which RULER's script leaves its essays. Default: no.
    """

    words: tuple[str, ...]
    starts: tuple[int, ...]
    gutenberg: bool
    essays: bool = False


def read_words(sources: Sequence[Source]) -> Words:
    """Read books or essays, one after the other.

    Args:
        sources: what `titans.data.corpora.documents` reads, or a .json file whose "text" is the text, as RULER's
            script leaves its essays. A book of Project Gutenberg is read from its start mark to its end mark.

    Returns:
        The words of all.

    Raises:
        TitansError: a source cannot be read, or there is no word in any.
    """
    words: list[str] = []
    gutenberg = False
    for source in sources:
        for text in _texts(source):
            book = strip_gutenberg(text)
            gutenberg |= len(book) < len(text)
            words += book.split()
    if not words:
        raise TitansError("the text is empty: expected books or essays with at least one word")
    return Words(tuple(words), tuple(sentence_starts(words)), gutenberg, all(map(_is_essays, sources)))


def strip_gutenberg(text: str) -> str:
    """Take the header and the licence off a book of Project Gutenberg; other text stays as it is."""
    start = _START.search(text)
    if start is None:
        return text
    text = text[start.end() :]
    end = _END.search(text)
    return text[: end.start()] if end else text


def sentence_starts(words: Sequence[str]) -> list[int]:
    """Return the numbers of the words that begin a sentence, the first among them.

    A sentence ends with a word that ends in . ! or ?, quotes and brackets aside, before a word with a capital or a
    digit; not after an initial or a title as Mr.
    """
    ends = tuple(".!?" + _CLOSING)
    starts = [0]
    for number, word in enumerate(words[:-1], start=1):
        if word.endswith(ends) and _LAST.search(word) and _FIRST.match(words[number]) and not _ABBREVIATION.match(word):
            starts.append(number)
    return starts


def sentences(text: str) -> list[str]:
    """Cut a text into its sentences, line breaks and all, without the white space before and after each."""
    places = [match.span() for match in re.finditer(r"\S+", text)]
    starts = sentence_starts([text[start:end] for start, end in places]) if places else []
    pairs = itertools.pairwise([*starts, len(places)])
    return [text[places[first][0] : places[after - 1][1]] for first, after in pairs]


def _is_essays(source: Source) -> TypeGuard[str | Path]:
    return isinstance(source, str | Path) and kind(Path(source)) == ".json" and Path(source).is_file()


def _texts(source: Source) -> list[str]:
    if _is_essays(source):
        content = read_text(Path(source))
        try:
            text = json.loads(content)["text"]
        except (ValueError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise TitansError(f'{source} is no JSON object whose "text" is the text')
        return [text]
    return [document.text() for document in documents(source)]
