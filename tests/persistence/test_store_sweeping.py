"""What deletions and crashes leave: taken away at once, or when a store is opened, and no version comes again."""

import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from titans import MemoryStore, save_state
from titans.io import atomic
from titans.persistence import ConflictError, StoreError, versions
from titans.persistence.memories import MemoryKey

PLACE = MemoryKey("t", "s")


@pytest.fixture
def state(tiny, read):
    return read(tiny, 3)[1]


def files(store):
    return sorted(store.folder.leavings(lambda name, size: True))


def before(monkeypatch, folder, name, act):
    """Let something happen right before the next call of a folder's method."""
    method = getattr(folder, name)

    def late(*arguments):
        monkeypatch.setattr(folder, name, method)
        act()
        return method(*arguments)

    monkeypatch.setattr(folder, name, late)


def killed_while_deleting(store, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr(versions.Versions, "bury", lambda *arguments: None)
        store.delete("t", name)


# Deletions -----------------------------------------------------------------------------------------------------


def test_deleted_memories_leave_one_note(store, state):
    store.put("t", "kept", state, expected=0)
    for i in range(5):
        for name in "ab":
            store.put("t", f"{name}{i}", state, expected=0)
        for name in "ab":
            store.delete("t", f"{name}{i}")
    # The last number and the one before; each memory began, and ended, above those that were deleted.
    assert files(store) == [f"t=0/=last/{14:012d}", f"t=0/=last/{15:012d}", f"t=0/kept=0/{1:012d}.safetensors"]
    assert store.folder.folders("t=0") in (["=last", "kept=0"], ["kept=0", "=last"])
    assert store.put("t", "a0", state, expected=None).version == 16
    assert store.put("t", "kept", state, expected=1).version == 16
    assert store.put("other", "a0", state, expected=None).version == 1


def test_no_version_comes_again_after_a_deletion(store, root, tiny, read, same, state):
    _, new = read(tiny, 5)
    reader = MemoryStore(root, tiny)
    store.put("t", "s", state, expected=0)
    assert reader.get("t", "s").version == 1
    MemoryStore(root, tiny).delete("t", "s")
    assert reader.get("t", "s") is None
    assert reader.list("t") == []
    with pytest.raises(ConflictError, match="at version 0 and not 1"):
        reader.put("t", "s", state, expected=1)
    assert store.put("t", "s", new, expected=0).version == 3
    for other in (reader, store):
        with pytest.raises(ConflictError, match="at version 3 and not 1"):
            other.put("t", "s", state, expected=1)
        same(other.get("t", "s").state, new)
    assert store.put("t", "s", state, expected=3).version == 4


@pytest.mark.parametrize("act", ["put", "delete"])
def test_a_writer_that_slept_through_a_deletion_conflicts(store, root, tiny, state, monkeypatch, act):
    """The name of the version that it wants to make is free again."""
    store.put("t", "s", state, expected=0)
    before(monkeypatch, store.folder, "create", lambda: MemoryStore(root, tiny).delete("t", "s"))
    with pytest.raises(ConflictError):
        store.put("t", "s", state, expected=1) if act == "put" else store.delete("t", "s")
    assert store.get("t", "s") is None
    assert store.list("t") == []
    assert store.put("t", "s", state, expected=None).version == 3


def test_a_writer_that_slept_through_a_new_life_conflicts(store, root, tiny, read, same, state, monkeypatch):
    _, new = read(tiny, 5)
    store.put("t", "s", state, expected=0)

    def replaced():
        other = MemoryStore(root, tiny)
        other.delete("t", "s")
        other.put("t", "s", new, expected=None)

    before(monkeypatch, store.folder, "create", replaced)
    with pytest.raises(ConflictError):
        store.put("t", "s", state, expected=1)
    same(store.get("t", "s").state, new)
    assert len(files(store)) == 2  # with the note


def test_a_memory_begins_above_what_is_deleted_meanwhile(store, root, tiny, state, monkeypatch):
    """Its number would otherwise be one that a memory of its name may have had."""
    other = MemoryStore(root, tiny)
    for name in ("s", "u"):
        other.put("t", name, state, expected=0)
    other.delete("t", "s")

    def lived():
        assert other.put("t", "s", state, expected=0).version == 3
        other.delete("t", "s")

    before(monkeypatch, store.folder, "create", lived)
    assert store.put("t", "s", state, expected=0).version == 5
    before(monkeypatch, store.folder, "create", lambda: other.put("t", "v", state, expected=0))
    with pytest.raises(ConflictError):
        store.put("t", "v", state, expected=0)
    assert [info.name for info in store.list("t")] == ["s", "u", "v"]


def test_two_that_begin_a_memory_from_different_numbers_do_not_both_succeed(
    store, root, tiny, read, state, monkeypatch
):
    """One saw the note before another memory's deletion, and one after."""
    other = MemoryStore(root, tiny)
    for version in range(3):
        other.put("t", "u", state, expected=version)
    data = other.export("t", "u")
    other.delete("t", "u")
    first = f"t=0/s=0/{1:012d}.safetensors"
    before(monkeypatch, store.folder, "create", lambda: other.folder.create(first, data))
    with pytest.raises(ConflictError):
        store.put("t", "s", state, expected=0)
    assert store.info("t", "s").version == 1


def between(monkeypatch, store, act):
    """Let something happen after a writer has made its file, and before it looks around."""
    is_late = store.versions.is_late

    def held_up(*arguments):
        monkeypatch.setattr(store.versions, "is_late", is_late)
        act()
        _, newest, made, _ = arguments
        others = [version for version in store.versions.all(PLACE) if version.number != made.number]
        return is_late(PLACE, newest, made, others)

    monkeypatch.setattr(store.versions, "is_late", held_up)


@pytest.mark.parametrize("late", ["first", "next"])
def test_no_number_is_given_again_to_who_builds_on_a_file_that_is_taken_back(
    store, root, tiny, state, monkeypatch, late
):
    """A writer looked, was held up while the memory was deleted, and makes its file, which another builds on."""
    other, given, expected = MemoryStore(root, tiny), [], int(late == "next")
    if expected:
        given.append(store.put("t", "s", state, expected=0).version)

    def lived():
        for version in range(expected, 3):
            given.append(other.put("t", "s", state, expected=version).version)
        other.delete("t", "s")

    def built_upon():
        given.append(other.put("t", "s", state, expected=other.info("t", "s").version).version)

    before(monkeypatch, store.folder, "create", lived)
    between(monkeypatch, store, built_upon)
    with pytest.raises(ConflictError):
        store.put("t", "s", state, expected=expected)
    assert given == [1, 2, 3, 5]
    assert store.info("t", "s").version == 5


def test_of_two_writers_of_one_version_that_saw_different_notes_one_succeeds(
    store, root, tiny, read, same, monkeypatch
):
    """They make files of different numbers."""
    _, state = read(tiny, 3)
    _, later = read(tiny, 5)
    other = MemoryStore(root, tiny)
    store.put("t", "s", state, expected=0)

    def overtaken():
        other.versions.note("t", 7)
        assert other.put("t", "s", later, expected=1).version == 8

    before(monkeypatch, store.folder, "create", overtaken)
    with pytest.raises(ConflictError):
        store.put("t", "s", state, expected=1)
    same(store.get("t", "s").state, later)
    assert store.info("t", "s").version == 8


def test_a_note_that_rises_meanwhile_is_no_conflict(store, root, tiny, state, monkeypatch):
    """It is of another memory's deletion; the file is made again above it, and the number first had is nobody's."""
    store.put("t", "s", state, expected=0)
    before(monkeypatch, store.folder, "create", lambda: store.versions.note("t", 7))
    assert store.put("t", "s", state, expected=1).version == 8
    assert [name for name in files(store) if "=last" not in name] == [f"t=0/s=0/{8:012d}.safetensors"]


def test_a_number_that_was_taken_back_is_given_to_nobody(store, root, tiny, state, monkeypatch):
    """Somebody may have read what was there."""
    other, second = MemoryStore(root, tiny), f"t=0/s=0/{2:012d}.safetensors"
    before(monkeypatch, store.folder, "create", lambda: other.folder.create(second, b"x" * 99))
    with pytest.raises(ConflictError):
        store.put("t", "s", state, expected=0)
    assert [name for name in files(store) if "=last" not in name] == [second]
    other.folder.remove(second)  # taken back, too
    assert store.put("t", "s", state, expected=0).version == 2


def test_a_deletion_not_yet_swept_may_be_below_the_note(store, state, monkeypatch):
    store.put("t", "s", state, expected=0)
    for version in range(5):
        store.put("t", "u", state, expected=version)
    killed_while_deleting(store, monkeypatch, "s")
    store.delete("t", "u")
    assert store.put("t", "s", state, expected=0).version == 7


def test_a_sweep_between_two_looks_is_noticed(store, root, tiny, state, monkeypatch):
    """Whoever does not see the deletion any more sees its number noted."""
    store.put("t", "s", state, expected=0)
    killed_while_deleting(store, monkeypatch, "s")
    list_files = store.folder.files

    def late(path):
        monkeypatch.setattr(store.folder, "files", list_files)
        found = list_files(path)
        MemoryStore(root, tiny)
        return found

    monkeypatch.setattr(store.folder, "files", late)
    assert store.put("t", "s", state, expected=0).version == 3


# Crashes -------------------------------------------------------------------------------------------------------


def test_a_deletion_that_a_crash_cut_short_is_swept_at_the_next_start(store, root, tiny, state, monkeypatch):
    for name in ("kept", "a", "b"):
        store.put("t", name, state, expected=0)
    killed_while_deleting(store, monkeypatch, "a")
    with monkeypatch.context() as patch:  # before it had removed what it deletes
        patch.setattr(store.folder, "remove", lambda path: None)
        killed_while_deleting(store, monkeypatch, "b")
    assert store.get("t", "b") is None
    opened = MemoryStore(root, tiny)
    assert files(opened) == [f"t=0/=last/{2:012d}", f"t=0/kept=0/{1:012d}.safetensors"]
    assert opened.get("t", "b") is None
    assert opened.put("t", "a", state, expected=0).version == 3


def test_a_number_that_cannot_be_noted_is_not_swept(store, root, tiny, state, monkeypatch, caplog):
    def fail(*arguments):
        raise StoreError("full", "no space")

    store.put("t", "s", state, expected=0)
    with monkeypatch.context() as patch:
        patch.setattr(versions.Versions, "note", fail)
        store.delete("t", "s")
        MemoryStore(root, tiny)  # opens all the same
    assert "the store is full" in caplog.text
    assert store.put("t", "s", state, expected=0).version == 3


WRITER = """
import os, runpy, sys
from pathlib import Path
atomic, sync = runpy.run_path(sys.argv[1]), os.fsync  # without torch, which takes seconds to load
def slow(descriptor):
    print(flush=True)
    sys.stdin.readline()
    sync(descriptor)
os.fsync = slow
atomic["create"](Path(sys.argv[2]), b"x" * 1000)
print("made", flush=True)
"""


def test_what_a_killed_writer_left_goes_at_the_next_start_and_what_a_living_one_writes_stays(tmp_path, tiny, state):
    MemoryStore(tmp_path, tiny).put("t", "s", state, expected=0)
    folder = tmp_path / "t=0" / "s=0"
    (living, killed) = (
        subprocess.Popen(
            [sys.executable, "-c", WRITER, atomic.__file__, str(folder / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("living", "killed")
    )
    for process in (living, killed):
        process.stdout.readline()
    assert len(list(folder.glob(f"*{atomic.SUFFIX}"))) == 2
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    MemoryStore(tmp_path, tiny)
    assert len(list(folder.glob(f"*{atomic.SUFFIX}"))) == 1
    said, _ = living.communicate("\n\n")
    assert said.strip() == "made"
    assert sorted(path.name for path in folder.iterdir()) == [f"{1:012d}.safetensors", "living"]


def test_where_locks_are_unknown_a_day_must_pass(tmp_path, monkeypatch):
    new, old = tmp_path / f"new{atomic.SUFFIX}", tmp_path / f"old{atomic.SUFFIX}"
    for path in (new, old):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 90_000,) * 2)
    assert atomic.is_abandoned(new)
    monkeypatch.setattr(atomic, "fcntl", None)
    assert (atomic.is_abandoned(new), atomic.is_abandoned(old)) == (False, True)


def test_a_writer_whose_file_was_swept_writes_it_again(tmp_path, tiny, state, same, monkeypatch):
    store, link = MemoryStore(tmp_path, tiny), os.link

    def swept(source, target):
        monkeypatch.setattr(os, "link", link)
        os.unlink(source)
        link(source, target)

    monkeypatch.setattr(os, "link", swept)
    store.put("t", "s", state, expected=0)
    same(store.get("t", "s").state, state)


# Whose files they are ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_memories_are_their_owners_alone(tmp_path, tiny, state, umask):
    old = os.umask(umask)
    try:
        store = MemoryStore(tmp_path / "made" / "store", tiny)
        store.put("t", "s", state, expected=0)
        store.put("t", "gone", state, expected=0)
        store.delete("t", "gone")
        save_state(state, tmp_path / "exported")
    finally:
        os.umask(old)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "made" / "store").rglob("*")}
    assert {modes[path] for path in modes if path.is_dir()} == {0o700}
    assert {modes[path] for path in modes if path.is_file()} == {0o600}
    assert stat.S_IMODE((tmp_path / "made" / "store").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "exported").stat().st_mode) == 0o600


def test_what_its_user_opened_stays_open(tmp_path, tiny, state):
    (tmp_path / "store").mkdir(mode=0o755)
    (tmp_path / "store").chmod(0o755)
    MemoryStore(tmp_path / "store", tiny).put("t", "s", state, expected=0)
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o755
    save_state(state, tmp_path / "exported")
    (tmp_path / "exported").chmod(0o640)
    save_state(state, tmp_path / "exported")
    atomic.write(tmp_path / "exported", b"report")
    assert stat.S_IMODE((tmp_path / "exported").stat().st_mode) == 0o640
