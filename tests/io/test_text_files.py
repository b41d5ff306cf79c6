"""Texts are read through any compression and byte order mark, and what is no text is refused in a sentence."""

import bz2
import codecs
import functools
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import pytest

from titans.data import documents
from titans.data.babi import find_stories, read_stories
from titans.data.books import read_words
from titans.data.language_tasks import local_task
from titans.errors import TitansError
from titans.forecasting.frames import read_csv
from titans.io.text import decode, read_text, text_lines
from titans.models.write_policy import FILE, WritePolicy
from titans.serving.access import load_keys
from titans.training import load_recipe

TEXT = "Ein Satz, \u2028 zwei\x0b Zeilen: é世\U0001f600\nnoch eine\n"
RECORDS = [{"text": "one\u2028 é"}, {"text": "two\nlines"}, {"text": ""}]
LINES = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS)


gz = functools.partial(gzip.compress, mtime=0)  # else the names of the tests would hold the time


def zstd(data):
    pyarrow = pytest.importorskip("pyarrow")
    buffer = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(buffer, "zstd") as stream:
        stream.write(data)
    return buffer.getvalue().to_pybytes()


PACK = {"gz": gz, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd, "GZ": gz}
MARKED = {
    "plain": str.encode,
    "utf-8": lambda text: codecs.BOM_UTF8 + text.encode(),
    "utf-16-le": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "utf-16-be": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "utf-32": lambda text: text.encode("utf-32"),
}


@pytest.fixture(params=[*PACK, None])
def packed(request, tmp_path):
    """Write a file, compressed and named so: `packed(name, data)`."""

    def write(name, data):
        path = tmp_path / (name if request.param is None else f"{name}.{request.param}")
        path.write_bytes(PACK[request.param](data) if request.param else data)
        return path

    return write


@pytest.mark.parametrize("encode", MARKED.values(), ids=MARKED)
def test_every_reader_reads_what_is_packed_and_marked(packed, encode):
    assert read_text(packed("a.txt", encode(TEXT))) == TEXT
    assert list(text_lines(packed("a.txt", encode(TEXT)))) == [line + "\n" for line in TEXT.split("\n")[:-1]]
    assert [x.text() for x in documents(packed("a.md", encode(TEXT)))] == [TEXT]
    for name in ("a.jsonl", "a.NDJSON", "a.json"):
        assert [x.text() for x in documents(packed(name, encode(LINES)))] == ["one\u2028 é", "two\nlines"]
    for indent in (None, 1):
        listed = packed("list.json", encode(json.dumps(RECORDS, indent=indent)))
        assert [x.text() for x in documents(listed)] == ["one\u2028 é", "two\nlines"]
        essays = packed("essays.json", encode(json.dumps({"text": "An essay."}, indent=indent)))
        assert [x.text() for x in documents(essays)] == ["An essay."]
        assert read_words([essays]).words == ("An", "essay.")
        assert read_words([essays]).essays
    stories = packed("qa1_x_test.txt", encode("1 Bill is here.\n2 Who is here?\tBill\t1\n"))
    assert find_stories(stories.parent, "qa1") == stories
    (story,) = read_stories(stories)
    assert (story.facts, story.answer) == (("Bill is here.",), "Bill")
    table = read_csv(packed("a.csv", encode("time,é\n" + "".join(f"2024-01-{day:02},{day}\n" for day in range(1, 9)))))
    assert (table.frame.columns[0], table.frame["é"].tolist()) == ("é", [1, 2, 3, 4, 5, 6, 7, 8])


@pytest.mark.parametrize("encode", MARKED.values(), ids=MARKED)
def test_tasks_are_read_packed_and_marked(packed, encode):
    piqa = packed("piqa_valid.jsonl", encode('{"goal": "é", "sol1": "a\u2028", "sol2": "b"}\n'))
    (piqa.parent / "piqa_valid-labels.lst").write_bytes(encode("1\n"))
    found = local_task(piqa.parent, "piqa")
    assert found.rows == [{"goal": "é", "sol1": "a\u2028", "sol2": "b", "label": 1}]
    wikitext = packed("wikitext-2.txt", encode(" = Title = \n\n text\n"))
    assert local_task(wikitext.parent, "wikitext").rows == [{"page": " = Title = \n\n text\n"}]
    stock = packed("boolq.jsonl", encode('{"question": "é"}\n'))
    assert local_task(stock.parent, "boolq").rows == [{"question": "é"}]


@pytest.mark.parametrize("encode", MARKED.values(), ids=MARKED)
def test_settings_may_have_marks(tmp_path, encode):
    recipe = tmp_path / "r.yaml"
    recipe.write_bytes(encode("model: {}\ndata: {train: é}\n"))
    assert load_recipe(recipe).data.train == ("é",)
    (tmp_path / FILE).write_bytes(encode(WritePolicy("never").save(tmp_path).read_text()))
    assert WritePolicy.load(tmp_path) == WritePolicy("never")
    (tmp_path / "keys.json").write_bytes(encode('{"a-long-enough-secret": "tenant"}'))
    assert load_keys(tmp_path / "keys.json") == {"a-long-enough-secret": "tenant"}


def test_rows_of_packed_parquet(packed):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": ["one", "two"]}), buffer)
    assert [x.text() for x in documents(packed("x.parquet", buffer.getvalue()))] == ["one", "two"]


def test_the_content_decides_on_compression_and_any_depth_of_it(tmp_path):
    for name, data in {
        "a.txt": gz(TEXT.encode()),
        "b.gz": lzma.compress(TEXT.encode()),
        "c.txt.gz.xz": lzma.compress(gz(TEXT.encode())),
        "d.txt.gz": gz(TEXT[:9].encode()) + gz(TEXT[9:].encode()),
        "BZh.txt": TEXT.encode(),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert read_text(tmp_path / name) == TEXT, name
    (tmp_path / "e.txt").write_text("BZh9 begins this text")
    assert read_text(tmp_path / "e.txt") == "BZh9 begins this text"


@pytest.mark.parametrize("content", ['{\n "a": 1\n}', "[1, 2]", "[]", "{", "7", "[{]", "[" * 99_999])
def test_json_that_holds_no_records_is_text(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    assert [x.text() for x in documents(tmp_path / "a.json")] == [content]


@pytest.mark.parametrize("content", ['{"a": 1}\n{"a": 2}', '[{"a": 1}]'])
def test_json_records_without_the_field_are_refused(packed, content):
    with pytest.raises(TitansError, match=r'(line|entry) 1 has no field "text" \(fields: a\)'):
        list(documents(packed("a.json", content.encode())))


def test_brackets_nested_too_deeply_are_no_json(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": ' + "[" * 99_999)
    with pytest.raises(TitansError, match="line 1 is not JSON"):
        list(documents(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("data", [codecs.BOM_UTF8, gz(b""), bz2.compress(b""), codecs.BOM_UTF16_LE])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json"])
def test_what_holds_nothing_is_no_document(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TitansError, match="holds no text"):
        list(documents(tmp_path / name))


def archive(kind):
    buffer = io.BytesIO()
    if kind == "tar":
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())
    else:
        with zipfile.ZipFile(buffer, "w") as made:
            made.writestr("a.txt", "text")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", "Text".encode("utf-16-le"), r"a\.txt is not UTF-8 text \(byte 1\)"),
        ("a.txt", "Text".encode("utf-16-be"), r"a\.txt is not UTF-8 text \(byte 0\)"),
        ("a.txt", codecs.BOM_UTF8 + b"ab\xff", r"is not UTF-8 text \(byte 5\)"),
        ("a.txt", codecs.BOM_UTF16_LE + b"a\0b", r"is not UTF-16 text \(byte 4\)"),
        ("a.jsonl", codecs.BOM_UTF16_LE + b"a\0b", r"after line 0 is not UTF-16 text"),
        ("a.tar.gz", gz(archive("tar")), "is a tar archive, not a text: unpack"),
        ("a.zip", archive("zip"), "is a zip archive, not a text"),
        ("a.jsonl", archive("zip"), "is a zip archive, not a text"),
        ("a.pdf", b"%PDF-1.7", "is a PDF, not a text"),
        ("a.jsonl.gz", LINES.encode(), r"cannot decompress .*a\.jsonl\.gz: it is not compressed"),
        ("a.jsonl.bz2", bz2.compress(LINES.encode())[:-4], r"cannot decompress .*a\.jsonl\.bz2 .*damaged or cut short"),
        ("a.parquet", LINES.encode(), "is not a readable parquet file"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TitansError, match=message):
        [x.text() for x in documents(tmp_path / name)]


def test_damaged_zstd_is_named(tmp_path):
    (tmp_path / "a.txt.zst").write_bytes(zstd(TEXT.encode())[:-3])
    with pytest.raises(TitansError, match="cannot decompress"):
        read_text(tmp_path / "a.txt.zst")


def test_bytes_are_decoded_by_their_mark():
    assert decode(codecs.BOM_UTF8 + b"a", "it") == "a"
    with pytest.raises(TitansError, match=r"it is not UTF-8 text \(byte 4\)"):
        decode(codecs.BOM_UTF8 + b"a\xff", "it")


def test_compression_has_an_end(tmp_path):
    """There are files that hold themselves."""
    path, data = tmp_path / "a.txt.gz", b"text"
    for times in range(1, 6):
        data = gzip.compress(data)
        path.write_bytes(data)
        if times <= 4:
            assert read_text(path) == "text"
    with pytest.raises(TitansError, match=r"a\.txt\.gz is compressed more than 4 times over: unpack it first"):
        read_text(path)


def test_a_text_may_begin_like_the_name_of_an_archive(tmp_path):
    path = tmp_path / "a.txt"
    for version in (b"\0", b"\1\0"):
        path.write_bytes(b"Rar!\x1a\x07" + version)
        with pytest.raises(TitansError, match="is a rar archive, not a text"):
            read_text(path)
    path.write_text("Rar! said the lion.\n")
    assert read_text(path) == "Rar! said the lion.\n"
