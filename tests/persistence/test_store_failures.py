"""A place that fails: full, read-only, gone. It is told apart from what a caller did wrong, and nothing is lost."""

import errno
import os
import shutil
import uuid

import pytest

from titans import MemoryStore, TitansError
from titans.io import atomic
from titans.persistence import StoreError


@pytest.fixture
def store(tmp_path, tiny):
    return MemoryStore(tmp_path / "store", tiny)


def failing(code):
    def fail(*args, **options):
        raise OSError(code, os.strerror(code), "/secret/path")

    return fail


@pytest.mark.parametrize(
    ("call", "code", "kind"),
    [
        ("fsync", errno.ENOSPC, "full"),
        ("fsync", errno.EDQUOT, "full"),
        ("fsync", errno.EIO, "failed"),
        ("link", errno.ENOSPC, "full"),
        ("link", errno.EROFS, "read-only"),
        ("link", errno.EACCES, "read-only"),
    ],
)
def test_a_place_that_fails_is_told_apart(store, tiny, read, same, monkeypatch, call, code, kind):
    _, state = read(tiny, 3)
    store.put("t", "s", state, expected=0)
    monkeypatch.setattr(os, call, failing(code))
    for act in (
        store.check,
        lambda: store.put("t", "s", read(tiny, 5)[1], expected=1),
        lambda: store.put("t", "new", state, expected=0),
        lambda: store.delete("t", "s"),
        lambda: store.reset("t", "s"),
        lambda: store.fork("t", "s", "new"),
    ):
        with pytest.raises(StoreError, match=os.strerror(code)) as caught:
            act()
        assert caught.value.kind == kind
        assert "/secret" not in str(caught.value)
    monkeypatch.undo()
    store.check()
    same(store.get("t", "s").state, state)
    assert store.get("t", "new") is None
    assert store.put("t", "s", state, expected=1).version == 2


def test_what_is_said_not_to_be_saved_is_not_saved(store, tiny, read, same, monkeypatch):
    """The file is there under its name, and the name cannot be forced to disk."""
    _, state = read(tiny, 3)
    store.put("t", "s", state, expected=0)
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "sync_folder", failing(errno.EIO))
        with pytest.raises(StoreError):
            store.put("t", "s", read(tiny, 5)[1], expected=1)
    same(store.get("t", "s").state, state)
    assert store.put("t", "s", read(tiny, 5)[1], expected=1).tokens == 5


def test_a_disk_that_cannot_be_read(store, tiny, read, monkeypatch):
    store.put("t", "s", read(tiny, 3)[1], expected=0)
    monkeypatch.setattr(os, "scandir", failing(errno.EIO))
    for act in (lambda: store.get("t", "s"), lambda: store.list("t"), lambda: store.info("t", "s")):
        with pytest.raises(StoreError) as caught:
            act()
        assert caught.value.kind == "failed"


def test_a_store_that_is_gone_is_no_empty_one(store, tiny, read, tmp_path):
    """Otherwise everybody would start anew, in a folder that may lie under the place of a lost disk."""
    _, state = read(tiny, 3)
    store.put("t", "s", state, expected=0)
    shutil.rmtree(tmp_path / "store")
    for act in (
        store.check,
        lambda: store.get("t", "s"),
        lambda: store.info("t", "s"),
        lambda: store.list("t"),
        lambda: store.put("t", "s", state, expected=1),
        lambda: store.put("t", "new", state, expected=0),
    ):
        with pytest.raises(StoreError, match="is gone") as caught:
            act()
        assert caught.value.kind == "gone"
    assert not (tmp_path / "store").exists()


def test_a_version_is_written_even_if_the_one_before_cannot_be_removed(store, tiny, read, same, monkeypatch):
    store.put("t", "s", read(tiny, 3)[1], expected=0)
    monkeypatch.setattr(store.folder, "remove", lambda path: (_ for _ in ()).throw(StoreError("failed", "busy")))
    _, later = read(tiny, 5)
    assert store.put("t", "s", later, expected=1).version == 2
    monkeypatch.undo()
    same(store.get("t", "s").state, later)
    store.put("t", "s", later, expected=2)
    assert len(list(store.folder.files("t=0/s=0"))) == 1


def test_a_service_that_fails(tiny, read, monkeypatch):
    class ServiceError(Exception):
        pass

    def fail(*args, **options):
        raise ServiceError("at https://secret")

    store = MemoryStore(f"memory://{uuid.uuid4().hex}", tiny)
    monkeypatch.setattr(type(store.folder.fs), "ls", fail)
    with pytest.raises(StoreError, match="ServiceError") as caught:
        store.get("t", "s")
    assert caught.value.kind == "failed"
    assert "secret" not in str(caught.value)


def test_what_is_no_folder_is_refused_at_once(tiny, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place in ("file", "file/inside"):
        with pytest.raises(TitansError, match=r"cannot open the store .*file"):
            MemoryStore(tmp_path / place, tiny)


def test_a_check_leaves_nothing(store):
    store.check()
    assert [path for path in store.folder.root.rglob("*") if path.is_file()] == []
