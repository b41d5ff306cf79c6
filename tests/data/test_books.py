"""Books without Project Gutenberg's frame, cut into sentences; compressed files."""

import gzip
import json
import lzma

import pytest

from titans.data.books import read_words, sentence_starts, strip_gutenberg
from titans.data.corpora import documents
from titans.errors import TitansError

BOOK = """Header. Title: A Book

***START OF THE PROJECT GUTENBERG EBOOK A
BOOK***
It was late. "Go!" said Mr. Brown.  He
went.
***
Again.
End of the Project Gutenberg EBook of A Book
*** END OF THE PROJECT GUTENBERG EBOOK A BOOK ***
*** START: FULL LICENSE ***
"""


def sentences(text):
    words = text.split()
    starts = sentence_starts(words)
    return [" ".join(words[start:end]) for start, end in zip(starts, [*starts[1:], len(words)], strict=True)]


def test_gutenberg_frame():
    assert strip_gutenberg(BOOK).split() == [
        "It",
        "was",
        "late.",
        '"Go!"',
        "said",
        "Mr.",
        "Brown.",
        "He",
        "went.",
        "***",
        "Again.",
    ]
    this = BOOK.replace("***START OF THE", "*** START OF THIS").replace("End of the Project", "THE")
    assert strip_gutenberg(this).split()[-3:] == ["of", "A", "Book"]  # up to the second mark
    assert strip_gutenberg("No frame. At all.") == "No frame. At all."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three! Four? Five", ["One two.", "Three!", "Four?", "Five"]),
        ("He said 'No.' Then he left.", ["He said 'No.'", "Then he left."]),
        ("“Well!” he said. “Good.” (Yes.) 3 men.", ["“Well!” he said.", "“Good.”", "(Yes.)", "3 men."]),
        ("Mr. Brown met J. Smith of St. Ives.", ["Mr. Brown met J. Smith of St. Ives."]),
        ("It was 3.5 miles... or more. ", ["It was 3.5 miles... or more."]),
        ("word", ["word"]),
    ],
)
def test_sentences(text, expected):
    assert sentences(text) == expected


def test_reads_books_compressed_or_not_and_essays_of_ruler(tmp_path):
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(BOOK.encode()))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"Plain text. No frame."))
    read = read_words([tmp_path])
    assert " ".join(read.words[-6:]) == "*** Again. Plain text. No frame."
    assert [read.words[start] for start in read.starts] == ["It", '"Go!"', "He", "Plain", "No"]
    assert read.gutenberg
    essays = tmp_path / "PaulGrahamEssays.json"
    essays.write_text(json.dumps({"text": "An essay. About\n\nit."}))
    assert read_words([essays]).words == ("An", "essay.", "About", "it.")
    assert not read_words([essays]).gutenberg
    assert read_words([essays]).essays
    assert not read_words([essays, tmp_path]).essays


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
def test_damaged_files_are_named(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    whole = {".xz": lzma, ".gz": gzip}[suffix].compress(b"some text" * 1000)
    for data in (whole[:-9], b"no archive", whole[:30] + b"\xff" * 9 + whole[39:]):
        path.write_bytes(data)
        with pytest.raises(TitansError, match=r"cannot (read|decompress) .*a\.txt"):
            [document.text() for document in documents(path)]


def test_refuses_what_holds_no_text(tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(TitansError, match="at least one word"):
        read_words([tmp_path / "a.txt"])
    for content in ("[]", '{"text": 5}', '{"text": null}', "{}", "{"):
        (tmp_path / "b.json").write_text(content)
        with pytest.raises(TitansError, match='"text" is the text'):
            read_words([tmp_path / "b.json"])
