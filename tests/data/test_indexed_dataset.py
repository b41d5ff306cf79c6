"""A store is built once, is reused while nothing changed, and never appears half-built."""

import os

import numpy as np
import pytest

from titans.data import IndexedDataset, build_indexed_dataset, byte_tokenizer
from titans.errors import TitansError

BYTES = byte_tokenizer()
BOS, EOS = 256, 257


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("hello")
    (tmp_path / "text" / "b.txt").write_text("yes")
    return tmp_path / "text"


def test_documents_are_bos_text_eos(tmp_path, corpus):
    store = build_indexed_dataset(tmp_path / "store", [corpus], BYTES)
    assert store.lengths.tolist() == [7, 5]
    assert store.read(0, 0, 99).tolist() == [BOS, *b"hello", EOS]
    assert store.read(1, 1, 3).tolist() == list(b"ye")
    assert store.tokens.dtype == np.uint16


def test_equal_call_reuses_the_store(tmp_path, corpus):
    build_indexed_dataset(tmp_path / "store", [corpus], BYTES)
    before = os.stat(tmp_path / "store" / "tokens.bin").st_ino
    store = build_indexed_dataset(tmp_path / "store", [corpus], BYTES)
    assert os.stat(tmp_path / "store" / "tokens.bin").st_ino == before
    assert len(store) == 2


@pytest.mark.parametrize("change", ["file", "added", "max_tokens"])
def test_changed_data_rebuilds_or_is_refused(tmp_path, corpus, change):
    build_indexed_dataset(tmp_path / "store", [corpus], BYTES)
    if change == "file":
        (corpus / "a.txt").write_text("other")
        os.utime(corpus / "a.txt", ns=(1, 1))
    elif change == "added":
        (corpus / "c.txt").write_text("more")
    options = {"max_tokens": 3} if change == "max_tokens" else {}
    with pytest.raises(TitansError, match="changed since"):
        build_indexed_dataset(tmp_path / "store", [corpus], BYTES, replace=False, **options)
    store = build_indexed_dataset(tmp_path / "store", [corpus], BYTES, **options)
    assert len(store) == {"file": 2, "added": 3, "max_tokens": 1}[change]


def test_a_failure_leaves_the_old_store(tmp_path, corpus):
    build_indexed_dataset(tmp_path / "store", [corpus], BYTES)
    (corpus / "c.txt").write_bytes(b"\xff")
    (tmp_path / "store.unfinished").mkdir()  # as a killed call leaves it
    with pytest.raises(TitansError, match="not UTF-8"):
        build_indexed_dataset(tmp_path / "store", [corpus], BYTES)
    assert len(IndexedDataset.open(tmp_path / "store")) == 2
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def test_a_store_in_memory():
    store = IndexedDataset.from_lists([[1, 2, 3], [], [4]])
    assert store.lengths.tolist() == [3, 0, 1]
    assert store.read(0, 1, 9).tolist() == [2, 3]
    assert store.read(1, 0, 9).tolist() == []
