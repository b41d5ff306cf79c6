"""The store: memories apart, versions in order, one winner, on a disk and in an object store alike."""

import dataclasses
import multiprocessing
import os
import threading
import time

import pytest
import torch

from titans import MemoryStore, TitansError, WritePolicy, load_state
from titans.persistence import (
    ConflictError,
    FingerprintError,
    InvalidNameError,
    LimitError,
    StateFileError,
    StoreCounts,
    StoreError,
    UnknownMemoryError,
)
from titans.persistence.cache import Cache


@pytest.fixture
def local(tmp_path, tiny):
    return MemoryStore(tmp_path / "store", tiny)


def files(store):
    return sorted(store.folder.leavings(lambda name, size: True))


# Reading and writing -------------------------------------------------------------------------------------------


def test_a_memory_goes_on_in_another_store(store, root, tiny, read, same):
    assert store.get("t", "s") is None
    assert store.info("t", "s") is None
    _, state = read(tiny, 7)
    info = store.put("t", "s", state, expected=None)
    assert dataclasses.replace(info, bytes=0, created="", updated="").__dict__ == {
        "tenant": "t", "name": "s", "version": 1, "tokens": 7, "bytes": 0, "created": "", "updated": "",
        "foreign": False, "damaged": False,
    }  # fmt: skip
    for reader in (store, MemoryStore(root, tiny)):
        stored = reader.get("t", "s")
        same(stored.state, state)
        assert (stored.info, stored.version) == (info, 1)
        assert reader.info("t", "s") == info
    _, later = read(tiny, 4, stored.state, seed=1)
    store.put("t", "s", later, expected=1)
    same(reader.get("t", "s").state, later)  # what it has in memory is no longer the newest
    assert reader.info("t", "s").version == 2
    assert info.bytes == len(reader.export("t", "s"))
    assert len(files(store)) == 1


def test_what_is_kept_is_not_what_the_caller_holds(store, tiny, read, same):
    _, state = read(tiny, 7)
    before = state.clone()
    store.put("t", "s", state, expected=0)
    for x in state.tensors():
        x.zero_()
    same(store.get("t", "s").state, before)
    with_graph = tiny(torch.ones(1, 3, dtype=torch.long)).cache
    store.put("t", "s", with_graph, expected=1)
    assert not any(x.requires_grad for x in store.get("t", "s").state.tensors())
    assert store.get("t", "s").state.provenance == with_graph.provenance


def test_only_the_expected_version_is_replaced(store, tiny, read):
    _, state = read(tiny, 3)
    for wrong in (1, 7):
        with pytest.raises(ConflictError, match=f"at version 0 and not {wrong}"):
            store.put("t", "s", state, expected=wrong)
    store.put("t", "s", state, expected=0)
    for wrong in (None, 0, 2):
        with pytest.raises(ConflictError, match="at version 1"):
            store.put("t", "s", state, expected=wrong)
    assert store.get("t", "s").version == 1


def test_created_stays_and_survives_damage(local, tiny, read, tmp_path):
    _, state = read(tiny, 3)
    local.load("t", "s", dumped(state, tiny, created="2020-01-01T00:00:00+00:00"))
    assert local.put("t", "s", state, expected=1).created == "2020-01-01T00:00:00+00:00"
    (file,) = (tmp_path / "store").rglob("*.safetensors")
    file.write_bytes(b"junk" * 9)
    reader = MemoryStore(tmp_path / "store", tiny)
    for look in (reader.get, reader.info):
        with pytest.raises(StateFileError, match="memory 's' of 't'") as caught:
            look("t", "s")
        assert str(tmp_path) not in str(caught.value)
    assert reader.put("t", "s", state, expected=2).version == 3


@pytest.mark.parametrize("harm", [lambda data: b"junk" * 9, lambda data: data[:-1], lambda data: data + b"."])
def test_a_damaged_memory_is_listed_with_the_others(local, tiny, read, tmp_path, harm):
    for name in "abc":
        local.put("t", name, read(tiny, 3)[1], expected=0)
    (file,) = (tmp_path / "store" / "t=0" / "b=0").iterdir()
    file.write_bytes(harm(file.read_bytes()))
    listed = local.list("t")
    assert [(info.name, info.damaged, info.tokens) for info in listed] == [
        ("a", False, 3),
        ("b", True, 0),
        ("c", False, 3),
    ]
    assert (listed[1].version, listed[1].bytes) == (1, file.stat().st_size)
    assert local.count().damaged == 1
    with pytest.raises(StateFileError):
        local.export("t", "b")
    assert local.reset("t", "b").version == 2
    assert not any(info.damaged for info in local.list("t"))


def dumped(state, model, **options):
    from titans.persistence.state_file import dump

    return dump(state, model, **options)


def test_a_memory_is_one_row_of_this_model(store, root, tiny, other, read):
    with pytest.raises(TitansError, match="2 rows"):
        store.put("t", "s", read(tiny, 3, rows=2)[1], expected=0)
    with pytest.raises(TitansError, match="another model"):
        store.put("t", "s", read(other, 3)[1], expected=0)
    with pytest.raises(TitansError, match="2 rows"):
        store.load("t", "s", dumped(read(tiny, 3, rows=2)[1], tiny))
    assert store.list("t") == []
    store.put("t", "s", read(tiny, 3)[1], expected=0)
    with pytest.raises(FingerprintError, match="'s'") as caught:
        MemoryStore(root, other).get("t", "s")
    assert str(root).removeprefix("memory:") not in str(caught.value)


def test_memories_of_another_model_are_marked(store, root, tiny, other, read):
    store.put("t", "a", read(tiny, 3)[1], expected=0)
    foreign = MemoryStore(root, other)
    foreign.put("t", "b", read(other, 3)[1], expected=0)
    assert [info.foreign for info in store.list("t")] == [False, True]
    assert [info.foreign for info in foreign.list("t")] == [True, False]
    assert (store.info("t", "b").foreign, foreign.info("t", "b").foreign) == (True, False)
    assert store.get("t", "a").info.foreign is False
    store.folder.create("u=0/c=0/000000000001.safetensors", b"damaged")
    store.put("u", "gone", read(tiny, 3)[1], expected=0)
    store.delete("u", "gone")
    for one, count in ((store, 1), (foreign, 1)):
        assert one.count() == StoreCounts(tenants=2, memories=3, foreign=count, damaged=1)
    assert store.tenants() == ["t", "u"]
    assert store.reset("t", "b").foreign is False
    assert store.count().foreign == 0
    assert foreign.count().foreign == 2
    assert foreign.info("t", "b").foreign


def test_weights_that_change_leave_no_memory_valid(root, other, read):
    store = MemoryStore(root, other)
    store.put("t", "s", read(other, 3)[1], expected=0)
    norm = other.model.norm.weight
    with torch.no_grad():
        norm.mul_(2)
        with pytest.raises(FingerprintError):
            store.get("t", "s")
        norm.div_(2)
    assert store.get("t", "s").version == 1


# Memories ------------------------------------------------------------------------------------------------------


def test_fork_reset_delete(store, tiny, read, same):
    _, state = read(tiny, 7)
    store.put("t", "a", state, expected=0)
    fork = store.fork("t", "a", "b")
    assert (fork.name, fork.version, fork.tokens) == ("b", 1, 7)
    store.put("t", "b", read(tiny, 2, state)[1], expected=1)
    same(store.get("t", "a").state, state)
    with pytest.raises(ConflictError):
        store.fork("t", "a", "b")
    assert store.reset("t", "a").version == 2
    same(store.get("t", "a").state, tiny.initial_state(1).detach())
    assert store.get("t", "b").state.tokens == 9
    fresh = WritePolicy("never").start(tiny.initial_state(1).detach())
    assert store.reset("t", "a", fresh).version == 3
    same(store.get("t", "a").state, fresh)
    with pytest.raises(TitansError, match="2 rows"):
        store.reset("t", "a", tiny.initial_state(2))
    store.delete("t", "a")
    assert store.get("t", "a") is None
    assert [info.name for info in store.list("t")] == ["b"]
    for missing in (lambda: store.delete("t", "a"), lambda: store.reset("t", "a"), lambda: store.fork("t", "a", "c"),
                    lambda: store.export("t", "a")):  # fmt: skip
        with pytest.raises(UnknownMemoryError, match="no memory 'a'"):
            missing()


def test_export_and_import(store, tiny, other, read, same, tmp_path):
    _, state = read(tiny, 7)
    store.put("t", "a", state, expected=0)
    data = store.export("t", "a")
    (tmp_path / "file").write_bytes(data)
    same(load_state(tmp_path / "file", tiny), state)
    assert store.load("u", "b", data).version == 1
    assert store.load("u", "b", data).version == 2
    same(store.get("u", "b").state, state)
    with pytest.raises(StateFileError):
        store.load("u", "c", data[:-1])
    with pytest.raises(FingerprintError):
        store.load("u", "c", dumped(read(other, 3)[1], other))
    assert [info.name for info in store.list("u")] == ["b"]


def test_list_is_sorted_and_paged(store, tiny, read):
    _, state = read(tiny, 3)
    names = sorted(["B", "a", "A.", "a:1", "b@c", "-", "Z+", "zz", ".x", "con"])
    for name in reversed(names):
        store.put("t", name, state, expected=0)
    store.put("other", "x", state, expected=0)
    assert [info.name for info in store.list("t")] == names
    store.delete("t", names[3])
    del names[3]
    pages, after = [], None
    while page := store.list("t", limit=2, after=after):
        pages.append([info.name for info in page])
        after = pages[-1][-1]
    assert [name for page in pages for name in page] == names
    assert max(map(len, pages)) == 2
    assert store.list("nobody") == []


def test_a_list_opens_only_what_has_its_prefix(store, tiny, read, monkeypatch):
    _, state = read(tiny, 3)
    for name in ("al:z", "ann", "ann:a", "ann:b", "ann:c", "anna:a", "bob:a"):
        store.put("t", name, state, expected=0)
    reads, read_file = [], store.folder.read
    monkeypatch.setattr(store.folder, "read", lambda *args: (reads.append(args[0]), read_file(*args))[1])
    for options, expected in (
        ({}, "abc"), ({"limit": 2}, "ab"), ({"after": "ann:a"}, "bc"), ({"after": "a"}, "abc"), ({"after": "b"}, ""),
    ):  # fmt: skip
        assert [info.name for info in store.list("t", prefix="ann:", **options)] == [f"ann:{x}" for x in expected]
    assert all("/ann;" in path for path in reads)
    assert len(reads) == 3 + 2 + 2 + 3
    assert store.list("t", prefix="an/") == store.list("t", prefix="zz") == []


def test_ten_thousand_memories_cost_no_more_than_a_page(tmp_path, tiny, read, monkeypatch):
    store = MemoryStore(tmp_path, tiny)
    store.put("t", "s00000", read(tiny, 3)[1], expected=0)
    (first,) = tmp_path.rglob("*.safetensors")
    for i in range(1, 10_000):
        folder = tmp_path / "t=0" / f"s{i:05d}=0"
        folder.mkdir()
        os.link(first, folder / first.name)
    reads, read_file = [], store.folder.read
    monkeypatch.setattr(store.folder, "read", lambda *args: (reads.append(args), read_file(*args))[1])
    start = time.perf_counter()
    assert [info.name for info in store.list("t", limit=3, after="s05000")] == ["s05001", "s05002", "s05003"]
    assert len(reads) == 3
    assert store.get("t", "s07777").version == 1
    store.put("t", "s07777", store.get("t", "s07777").state, expected=1)
    assert time.perf_counter() - start < 1


# Limits --------------------------------------------------------------------------------------------------------


def test_limits(root, tiny, read):
    _, state = read(tiny, 3)
    size = len(dumped(state, tiny))
    store = MemoryStore(root, tiny, max_state_bytes=size, max_memories=2)
    store.put("t", "a", state, expected=0)
    store.put("t", "b", state, expected=0)
    with pytest.raises(LimitError, match="2 memories"):
        store.put("t", "c", state, expected=0)
    with pytest.raises(LimitError, match="2 memories"):
        store.fork("t", "a", "c")
    store.put("u", "c", state, expected=0)
    store.put("t", "b", state, expected=1)
    store.delete("t", "a")
    store.put("t", "c", state, expected=0)
    small = MemoryStore(root, tiny, max_state_bytes=size - 1)
    with pytest.raises(LimitError, match="bytes"):
        small.put("t", "d", state, expected=0)
    with pytest.raises(LimitError, match="bytes"):
        small.load("t", "d", b"x" * size)


def test_memory_holds_what_was_used_last(root, tiny, read, monkeypatch):
    _, state = read(tiny, 3)
    store = MemoryStore(root, tiny, cache_bytes=2 * state.nbytes)
    reads, read_file = [], store.folder.read
    for name in "abc":
        store.put("t", name, state, expected=0)
    monkeypatch.setattr(store.folder, "read", lambda *args: (reads.append(args[0]), read_file(*args))[1])
    for name in "cbcabcb":  # a was evicted by c; reading a evicts b; reading b evicts c
        assert store.get("t", name).version == 1
    assert [path.split("/")[1] for path in reads] == ["a=0", "b=0", "c=0"]


def test_the_cache_counts_bytes():
    cache = Cache(10)
    cache.put("a", 1, 4)
    cache.put("a", 2, 5)
    cache.put("b", 3, 5)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == (2, 3, 10)
    cache.put("c", 4, 1)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == (None, 3, 6)
    cache.put("huge", 5, 11)
    assert (cache.get("huge"), cache.bytes) == (None, 0)
    cache.drop("b")
    assert cache.bytes == 0


# Tenants apart -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", "../t", "a/b", "", "a" * 129, "a\0", "a=0"])
def test_no_name_reaches_elsewhere(store, tiny, read, name):
    _, state = read(tiny, 3)
    store.put("t", "s", state, expected=0)
    for act in (
        lambda: store.get(name, "s"), lambda: store.get("t", name), lambda: store.put(name, "s", state, expected=0),
        lambda: store.list(name), lambda: store.fork("t", "s", name), lambda: store.delete("t", name),
        lambda: store.export(name, "s"), lambda: store.load("t", name, b""), lambda: store.reset("t", name),
    ):  # fmt: skip
        with pytest.raises(InvalidNameError):
            act()


def test_links_are_not_followed(local, tiny, read, tmp_path):
    _, state = read(tiny, 3)
    local.put("t", "s", state, expected=0)
    root = tmp_path / "store"
    (root / "evil=0").symlink_to(root / "t=0")
    (root / "t=0" / "evil=0").symlink_to(root / "t=0" / "s=0")
    (root / "u=0" / "s=0").mkdir(parents=True)
    (root / "u=0" / "s=0" / f"{1:012d}.safetensors").symlink_to(next(root.rglob("*.safetensors")))
    for look in (lambda: local.get("evil", "s"), lambda: local.list("evil"), lambda: local.get("t", "evil"),
                 lambda: local.put("t", "evil", state, expected=0)):  # fmt: skip
        with pytest.raises(TitansError, match="evil=0 is a link") as caught:
            look()
        assert str(tmp_path) not in str(caught.value)
    assert local.get("u", "s") is None
    assert [info.name for info in local.list("t")] == ["s"]


# Several writers -----------------------------------------------------------------------------------------------


def compete(store, model, writer, wins):
    """Write one's mark 15 times, each time on top of the newest version."""
    start = model.initial_state(1).detach()
    count = 0
    while count < 15:
        stored = store.get("t", "s")
        mark = dataclasses.replace(start, tokens=1_000 * (writer + 1) + count)
        try:
            store.put("t", "s", mark, expected=stored and stored.version)
        except ConflictError:
            continue
        count += 1
    wins.append(count)


def test_threads_win_or_conflict(store, tiny):
    wins = []
    threads = [threading.Thread(target=compete, args=(store, tiny, i, wins)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wins == [15] * 4
    last = store.get("t", "s")
    assert last.version >= 60
    assert last.state.tokens in {1_000 * (i + 1) + 14 for i in range(4)}
    assert len(store.folder.files("t=0/s=0")) == 1


def compete_in_process(root, folder, writer, wins):
    from titans import TitansForCausalLM

    model = TitansForCausalLM.from_pretrained(folder).eval()
    mine = []
    compete(MemoryStore(root, model), model, writer, mine)
    wins.put(mine[0])


@pytest.mark.slow
def test_processes_win_or_conflict(tiny, tmp_path):
    tiny.save_pretrained(tmp_path / "model")
    context = multiprocessing.get_context("spawn")
    wins = context.Queue()
    arguments = tmp_path / "store", tmp_path / "model"
    processes = [context.Process(target=compete_in_process, args=(*arguments, i, wins)) for i in range(2)]
    for process in processes:
        process.start()
    assert [wins.get(timeout=120) for _ in processes] == [15, 15]
    for process in processes:
        process.join()
    last = MemoryStore(tmp_path / "store", tiny).get("t", "s")
    assert last.version >= 30
    assert last.state.tokens in (1_014, 2_014)


def test_a_writer_that_slept_through_two_versions_conflicts(store, tiny, read, monkeypatch):
    """The version it wants to make was made and removed: the name is free, and yet it is too late."""
    _, state = read(tiny, 3)
    store.put("t", "s", state, expected=0)
    create = store.folder.create

    def late(path, data):
        monkeypatch.setattr(store.folder, "create", create)
        for version in (1, 2):
            store.put("t", "s", read(tiny, 5)[1], expected=version)
        create(path, data)

    monkeypatch.setattr(store.folder, "create", late)
    with pytest.raises(ConflictError, match="meanwhile"):
        store.put("t", "s", state, expected=1)
    assert store.get("t", "s").state.tokens == 5
    assert files(store) == [f"t=0/=last/{2:012d}", f"t=0/s=0/{3:012d}.safetensors"]  # a number taken back is used up


def test_a_reader_looks_again_when_a_version_vanishes(store, root, tiny, read, monkeypatch):
    _, state = read(tiny, 3)
    store.put("t", "s", state, expected=0)
    reader = MemoryStore(root, tiny)
    read_file = reader.folder.read

    def late(*args):
        monkeypatch.setattr(reader.folder, "read", read_file)
        store.put("t", "s", read(tiny, 5)[1], expected=1)
        return read_file(*args)

    monkeypatch.setattr(reader.folder, "read", late)
    assert reader.get("t", "s").version == 2


def test_no_half_written_file_counts(local, tiny, read, monkeypatch, tmp_path):
    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError):
        local.put("t", "s", read(tiny, 3)[1], expected=0)
    monkeypatch.undo()
    assert local.get("t", "s") is None
    assert local.list("t") == []


@pytest.mark.parametrize("url", ["nowhere://x", "sftp://x/y"])
def test_urls_that_cannot_be_opened(tiny, url):
    with pytest.raises(TitansError, match="cannot open the store"):
        MemoryStore(url, tiny)
