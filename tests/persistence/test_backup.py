"""Copies of a store: complete and whole while it is written, and never a version again after one was put back."""

import threading
import time
import uuid

import pytest

from titans import MemoryStore, TitansError
from titans.persistence import ConflictError, StateFileError, backup, restore
from titans.persistence.folders import LocalFolder


@pytest.fixture(params=["local", "memory"])
def place(request, tmp_path):
    """Make a place for a store."""
    return lambda name: tmp_path / name if request.param == "local" else f"memory://{uuid.uuid4().hex}"


def everything(store):
    return {(one, info.name): store.get(one, info.name).state for one in store.tenants() for info in store.list(one)}


def test_a_backup_is_a_store_and_what_is_restored_goes_on(place, tiny, read, same):
    root, copy, new = place("store"), place("copy"), place("new")
    store = MemoryStore(root, tiny)
    for i, (tenant, name) in enumerate([("t", "a"), ("t", "B:c"), ("u", "a")]):
        store.put(tenant, name, read(tiny, 3 + i)[1], expected=0)
    store.put("t", "a", read(tiny, 7)[1], expected=1)
    store.put("t", "gone", read(tiny, 3)[1], expected=0)
    store.delete("t", "gone")
    copied = backup(root, copy)
    assert (copied.memories, copied.damaged) == (3, ())
    assert copied.bytes == sum(info.bytes for one in "tu" for info in store.list(one))
    copy_store = MemoryStore(copy, tiny)
    same(everything(copy_store), everything(store))
    assert copy_store.list("t") == store.list("t")

    later = store.put("t", "a", read(tiny, 9)[1], expected=2)  # after the backup, and lost
    new_one = store.put("t", "new", read(tiny, 9)[1], expected=0)
    restore(copy, new)
    restored = MemoryStore(new, tiny)
    same(everything(restored), everything(copy_store))
    info = restored.info("t", "a")
    assert info.version > later.version
    with pytest.raises(ConflictError):
        restored.put("t", "a", read(tiny, 3)[1], expected=later.version)
    assert restored.put("t", "a", read(tiny, 3)[1], expected=info.version).version == info.version + 1
    assert restored.put("t", "new", read(tiny, 3)[1], expected=0).version > new_one.version


def test_a_backup_that_is_restored_twice_gives_no_version_twice(place, tiny, read):
    """Nor does a backup of what was restored."""
    root, copy, first, second, third = (place(name) for name in ("store", "copy", "first", "second", "third"))
    _, state = read(tiny, 3)
    store = MemoryStore(root, tiny)
    for name in ("a", "gone"):
        store.put("t", name, state, expected=0)
    store.delete("t", "gone")
    backup(root, copy)
    versions = []
    for source, target in ((copy, first), (copy, second), (second, third)):
        restore(source, target)
        restored = MemoryStore(target, tiny)
        versions.append(restored.info("t", "a").version)
        versions.append(restored.put("t", "a", state, expected=versions[-1]).version)
        assert restored.put("t", f"new{len(versions)}", state, expected=0).version == versions[-1]
        time.sleep(0.05)
    assert versions == sorted(set(versions))
    assert versions[-1] < 10**12


@pytest.mark.parametrize("listed", ["a=0", "=last"])
def test_what_a_writer_replaces_right_after_it_was_listed_is_not_missed(tmp_path, tiny, read, monkeypatch, listed):
    """The file that was listed is gone, and the one in its place is not in the list."""
    store, entries = MemoryStore(tmp_path / "store", tiny), LocalFolder.entries
    _, state = read(tiny, 3)
    store.put("t", "a", state, expected=0)
    for name in ("gone", "going"):
        store.put("t", name, state, expected=0)
    store.delete("t", "gone")

    def late(folder, path):
        found = entries(folder, path)
        if path == f"t=0/{listed}":
            monkeypatch.undo()
            store.put("t", "a", state, expected=1)
            for number in (5, 7):
                store.versions.note("t", number)
        return found

    monkeypatch.setattr(LocalFolder, "entries", late)
    assert backup(tmp_path / "store", tmp_path / "copy").memories == 2
    copy = MemoryStore(tmp_path / "copy", tiny)
    assert copy.info("t", "a").version == (store.info("t", "a").version if listed == "a=0" else 1)
    assert copy.put("t", "new", state, expected=0).version == 8


def test_a_backup_under_load_misses_nothing(tmp_path, tiny, read):
    """Each memory is there, and no older than it was when the backup began; `rsync` loses some."""
    store = MemoryStore(tmp_path / "store", tiny)
    _, state = read(tiny, 3)
    names = [f"s{i}" for i in range(12)]
    versions = {name: store.put("t", name, state, expected=0).version for name in names}
    stop = threading.Event()

    def write(own):
        while not stop.is_set():
            for name in own:
                versions[name] = store.put("t", name, state, expected=versions[name]).version

    writers = [threading.Thread(target=write, args=(names[i::3],)) for i in range(3)]
    for writer in writers:
        writer.start()
    try:
        for i in range(4):
            at_least = dict(versions)
            assert backup(tmp_path / "store", tmp_path / f"copy{i}").memories == 12
            found = {info.name: info.version for info in MemoryStore(tmp_path / f"copy{i}", tiny).list("t")}
            assert all(found[name] >= version for name, version in at_least.items())
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert sum(found.values()) > 3 * 12  # it was written meanwhile


def test_what_is_damaged_is_named_and_left_out(tmp_path, tiny, read):
    store = MemoryStore(tmp_path / "store", tiny)
    for name in "ab":
        store.put("t", name, read(tiny, 3)[1], expected=0)
    (file,) = (tmp_path / "store" / "t=0" / "a=0").iterdir()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    copied = backup(tmp_path / "store", tmp_path / "copy")
    assert copied.memories == 1
    (sentence,) = copied.damaged
    assert "the memory 'a' of 't': the state file is damaged" in sentence
    assert [info.name for info in MemoryStore(tmp_path / "copy", tiny).list("t")] == ["b"]


def test_a_backup_goes_to_a_new_place_only(place, tiny, read):
    root, copy = place("store"), place("copy")
    MemoryStore(root, tiny).put("t", "s", read(tiny, 3)[1], expected=0)
    backup(root, copy)
    for act in (backup, restore):
        with pytest.raises(TitansError, match="holds something already"):
            act(root, copy)
        with pytest.raises(TitansError, match="holds something already"):
            act(root, root)


def test_a_foreign_memory_is_adopted_where_it_fits(place, tiny, other, make_model, read, same):
    root = place("store")
    _, state = read(other, 7)
    MemoryStore(root, other).put("t", "s", state, expected=0)
    store = MemoryStore(root, tiny)
    info = store.adopt("t", "s")
    assert (info.version, info.tokens, info.foreign) == (2, 7, False)
    same(store.get("t", "s").state.layers, state.layers)
    wide = MemoryStore(root, make_model("mac", hidden_size=16))
    with pytest.raises(StateFileError, match="does not fit"):
        wide.adopt("t", "s")
    assert store.info("t", "s").version == 2
    with pytest.raises(TitansError, match="no memory 'x'"):
        store.adopt("t", "x")
