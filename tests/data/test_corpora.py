"""Documents come from everywhere in a fixed order; what cannot be read is named with its position."""

import builtins
import json

import pytest

from titans.data import HubSource, documents
from titans.errors import TitansError


def texts(sources, **options):
    return [document.text() for document in documents(sources, **options)]


def test_file_folder_and_glob(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"beta\r\n")
    (tmp_path / "a.py").write_text("alpha")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.txt").write_text("gamma")
    (tmp_path / ".hidden").write_text("secret")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("secret")
    (tmp_path / "empty.txt").write_text("")
    assert texts(tmp_path / "b.txt") == ["beta\r\n"]
    assert texts(str(tmp_path)) == ["alpha", "beta\r\n", "gamma"]
    assert texts(f"{tmp_path}/**/*.txt") == ["beta\r\n", "gamma"]
    assert texts([tmp_path / "b.txt", str(tmp_path / "a.py")]) == ["beta\r\n", "alpha"]


def test_jsonl_and_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = ["one", "two\nlines", ""]
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"body": row}) for row in rows) + "\n\n")
    parquet.write_table(pyarrow.table({"body": rows, "n": [1, 2, 3]}), tmp_path / "x.parquet")
    for name in ("x.jsonl", "x.parquet"):
        assert texts(tmp_path / name, text_field="body") == ["one", "two\nlines"]


def test_a_file_larger_than_one_read_is_whole(tmp_path):
    text = "ä€\U0001f600x" * 300_000  # 3 MB; characters straddle the reads
    (tmp_path / "big.txt").write_text(text, encoding="utf-8")
    (document,) = documents(tmp_path / "big.txt")
    assert len(list(document.blocks())) > 2
    assert document.text() == text


@pytest.mark.parametrize("position", [0, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 7])
def test_not_utf8_names_file_and_byte(tmp_path, position):
    (tmp_path / "bad.txt").write_bytes(b"x" * position + b"\xff" + b"y" * 10)
    with pytest.raises(TitansError, match=rf"bad\.txt is not UTF-8 text \(byte {position}\)"):
        texts(tmp_path / "bad.txt")


def test_cut_off_character_names_its_byte(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"abc" + "€".encode()[:2])
    with pytest.raises(TitansError, match=r"\(byte 3\)"):
        texts(tmp_path / "bad.txt")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', r"line 2 is not JSON"),
        (b'{"text": 3}', r'line 2: field "text" is int, expected a string'),
        (b'{"body": "a"}', r'line 2 has no field "text" \(fields: body\)'),
        (b'["a"]', r'line 2 has no field "text"'),
        (b'{"text": "\xff"}', r"line 2 is not UTF-8"),
        (b'{"text": "\\ud800"}', r"line 2: the text holds half a surrogate pair"),
    ],
)
def test_bad_jsonl_names_the_line(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(TitansError, match=message):
        texts(tmp_path / "x.jsonl")


def test_bad_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(b"no parquet")
    with pytest.raises(TitansError, match=r"x\.parquet is not a readable parquet file"):
        texts(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.txt", "does not exist"),
        ("no/such/folder", "does not exist"),
        ("*.nothing", 'no file matches "'),
    ],
)
def test_missing(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TitansError, match=message):
        texts(source)


@pytest.mark.parametrize("name", ["empty.txt", "empty.jsonl", "folder"])
def test_empty_is_refused(tmp_path, name):
    (tmp_path / "folder").mkdir()
    if name != "folder":
        (tmp_path / name).write_text("")
    with pytest.raises(TitansError, match="holds no text"):
        texts(tmp_path / name)


def test_unreadable_file(tmp_path):
    loop = tmp_path / "loop.txt"
    loop.symlink_to(tmp_path / "gone.txt")
    with pytest.raises(TitansError, match=r"loop\.txt"):
        texts(tmp_path)


def test_hub_needs_the_extra(monkeypatch):
    real = builtins.__import__

    def without_datasets(name, *args, **kwargs):
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(TitansError, match=r'pip install "titans-lm\[data\]"'):
        texts("owner/name")


def test_hub_rows_are_documents(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = {}

    def load_dataset(path, name, **options):
        asked.update(path=path, name=name, **options)
        return iter([{"text": "one"}, {"text": "two"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert texts(HubSource("owner/name", "small", "test")) == ["one", "two"]
    assert asked == {"path": "owner/name", "name": "small", "split": "test", "streaming": True}


def test_unreachable_hub_is_one_sentence(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def load_dataset(*args, **options):
        raise ConnectionError("Couldn't reach the hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(TitansError, match=r'Couldn\'t reach the hub\), and no file or folder is named "owner/name"'):
        texts("owner/name")
