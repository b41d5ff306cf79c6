"""State files: bit for bit what was saved, for the model that made it, whole or not at all."""

import copy
import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from titans import MemoryState, TitansConfig, TitansError, TitansForCausalLM, WritePolicy, load_state, save_state
from titans.io import atomic
from titans.persistence import FingerprintError, StateFileError, fingerprint
from titans.persistence.state_file import STATE_FILE, dump, parse
from titans.persistence.tree import flatten

SCRIPT = "import sys, torch\nfrom titans import TitansForCausalLM, load_state, save_state\n"


def run(code, *arguments):
    """Run Python code in a process of its own; returns what it prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT + code, *map(str, arguments)]
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


# There and back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 13])
def test_every_variant_goes_on_as_if_it_had_never_stopped(model, read, same, tmp_path, count):
    _, state = read(model, count, rows=2)
    save_state(state, tmp_path / "a.state")
    loaded = load_state(tmp_path / "a.state", model)
    same(loaded, state)
    assert loaded.tokens == count
    same(read(model, 9, loaded, seed=1, rows=2), read(model, 9, state, seed=1, rows=2))


def test_at_every_place_of_chunks_and_segments(tiny, read, same):
    state = None
    for step in range(13):
        _, state = read(tiny, 1, state, seed=step)
        same(parse(dump(state, tiny), tiny)[0], state)


def test_states_that_share_memory_or_count_rows_apart(model, read, same):
    start = model.initial_state(3)
    same(parse(dump(start, model), model)[0], start.detach())
    _, state = read(model, 5, rows=3)
    keep = torch.tensor([True, False, True])
    mixed = state.where(keep, start.detach())
    same(parse(dump(mixed, model), model)[0], mixed)
    joined = MemoryState.cat([read(model, 3)[1], read(model, 5)[1]])
    loaded, header = parse(dump(joined, model), model)
    same(loaded, joined)
    assert header.tokens == 5
    same(loaded.row(0), read(model, 3)[1].detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_precisions(make_model, variant, read, same, dtype):
    model = make_model(variant, dtype, fresh=True)
    _, state = read(model, 7)
    loaded, header = parse(dump(state, model), model)
    same(loaded, state)
    assert [x.dtype for x in loaded.tensors()] == [x.dtype for x in state.tensors()]
    assert header.variant == variant


@pytest.mark.slow
def test_a_new_process_goes_on_bit_for_bit(tiny, same, tmp_path):
    tiny.save_pretrained(tmp_path)
    torch.save(torch.randint(23, (1, 30)), tmp_path / "ids")
    code = """
model, ids = TitansForCausalLM.from_pretrained(sys.argv[1]).eval(), torch.load(sys.argv[1] + "/ids")
with torch.no_grad():
    if sys.argv[2] == "stop":
        state = model(ids[:, :11]).cache
        save_state(state, sys.argv[1] + "/state")
    else:
        state = load_state(sys.argv[1] + "/state", model)
    torch.save(model(ids[:, 11:], cache=state).logits, sys.argv[1] + "/" + sys.argv[2])
"""
    run(code, tmp_path, "stop")
    run(code, tmp_path, "go on")
    same(torch.load(tmp_path / "go on"), torch.load(tmp_path / "stop"))


def test_the_file_says_what_it_is_and_when_it_began(tiny, read, tmp_path):
    path = tmp_path / "state"
    _, state = read(tiny, 7)
    path.write_bytes(dump(state, tiny, created="2020-01-01T00:00:00+00:00"))
    save_state(state, path)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
        assert "layers.0.0.memory.memory.weights.0" in file.keys()  # noqa: SIM118 - not a mapping
    assert metadata["fingerprint"] == fingerprint(tiny)
    assert (metadata["variant"], metadata["tokens"]) == ("mac", "7")
    assert metadata["created"] == "2020-01-01T00:00:00+00:00" < metadata["updated"]
    assert json.loads(metadata["integers"])["layers.0.0.offset"] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


# Belonging -----------------------------------------------------------------------------------------------------


def test_fingerprints(tiny, other, make_model):
    config, weights = fingerprint(tiny).split("-")
    assert fingerprint(tiny) == fingerprint(tiny.model) == fingerprint(make_model("mac", torch.float32))
    assert fingerprint(other).split("-")[0] == config
    assert fingerprint(other).split("-")[1] != weights
    wider = make_model("mac", torch.float32, sliding_window=6)
    assert fingerprint(wider).split("-")[0] != config
    assert fingerprint(wider).split("-")[1] == weights
    changed = copy.deepcopy(tiny)
    assert fingerprint(changed) == fingerprint(tiny)
    with torch.no_grad():
        changed.model.norm.weight[0] += 1
    assert fingerprint(changed) != fingerprint(tiny)


class LaterConfig(TitansConfig):
    """The configuration of a library that has one field more."""

    memory_novelty: float = 0.5


def test_a_field_more_changes_nothing_while_it_has_its_default(tiny, read, same):
    _, state = read(tiny, 7)
    data = dump(state, tiny)
    later = TitansForCausalLM(LaterConfig(**{name: getattr(tiny.config, name) for name in TitansConfig.hints()}))
    later.load_state_dict(tiny.state_dict())
    assert fingerprint(later) == fingerprint(tiny)
    same(parse(data, later)[0].layers, state.layers)
    same(parse(dump(read(later, 7)[1], later), tiny)[0].layers, state.layers)  # and back
    later.config.memory_novelty = 0.6
    with pytest.raises(FingerprintError, match=r"configuration \(memory_novelty\)"):
        parse(data, later)
    with pytest.raises(FingerprintError, match=r"configuration \(memory_novelty\)"):
        parse(dump(read(later, 7)[1], later), tiny)


@pytest.mark.parametrize("fields", [{}, {"memory": {"chunk_size": 4}}])
def test_a_state_of_another_model_is_refused_unless_forced(tiny, other, make_model, read, same, tmp_path, fields):
    model = make_model("mac", torch.float32, **fields) if fields else other
    _, state = read(tiny, 7)
    save_state(state, tmp_path / "state")
    reason = "another configuration .memory.chunk_size." if fields else "other weights"
    with pytest.raises(FingerprintError, match=reason) as caught:
        load_state(tmp_path / "state", model)
    assert fingerprint(tiny) in str(caught.value)
    assert fingerprint(model) in str(caught.value)
    forced = load_state(tmp_path / "state", model, force=True)
    same(forced.layers, state.layers)
    save_state(forced, tmp_path / "state")
    same(load_state(tmp_path / "state", model), forced)


def test_force_goes_as_far_as_the_shapes_allow(tiny, make_model, read, tmp_path):
    save_state(read(tiny, 7)[1], tmp_path / "state")
    with pytest.raises(StateFileError, match="does not fit this model"):
        load_state(tmp_path / "state", make_model("mac", torch.float32, hidden_size=16), force=True)
    double = make_model("mac")
    forced = load_state(tmp_path / "state", double, force=True)
    assert {x.dtype for x in forced.tensors()} == {x.dtype for x in double.initial_state(1).tensors()}


def test_a_state_is_not_saved_for_weights_it_never_saw(tiny, read, tmp_path):
    model = copy.deepcopy(tiny)
    _, state = read(model, 3)
    assert state.provenance.model() is model.model
    optimizer = torch.optim.AdamW(model.parameters())
    model.train()(torch.ones(1, 5, dtype=torch.long), labels=torch.ones(1, 5, dtype=torch.long)).loss.backward()
    optimizer.step()
    model.eval()
    for stale in (state, read(model, 3, state)[1]):
        with pytest.raises(TitansError, match="weights have changed"):
            save_state(stale, tmp_path / "state")
    save_state(read(model, 3)[1], tmp_path / "state")
    with pytest.raises(TitansError, match="another model"):
        dump(state, tiny)


def test_states_know_their_model_and_carry_nothing_of_it(tiny, read, tmp_path):
    _, state = read(tiny, 3)
    assert len(pickle.dumps(state)) < 4 * state.nbytes
    unpickled = pickle.loads(pickle.dumps(state))
    assert unpickled.provenance is None
    with pytest.raises(TitansError, match="gone or unknown"):
        save_state(unpickled, tmp_path / "state")
    save_state(read(tiny, 3, unpickled)[1], tmp_path / "state")
    copied = copy.deepcopy(tiny)
    assert copy.deepcopy(state).provenance == state.provenance != read(copied, 3)[1].provenance
    for part in (state.row(0), state.detach(), MemoryState.cat([state, state]), state.expand(2)):
        assert part.provenance == state.provenance
    _, foreign = read(copied, 3)
    with pytest.raises(ValueError, match="same model"):
        MemoryState.cat([state, foreign])
    with pytest.raises(ValueError, match="same model"):
        state.where(torch.tensor([True]), foreign)


# Damage --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(make_model):
    """A model, a state that it made, and its file."""
    model = make_model("mac", torch.float32, num_hidden_layers=1)
    with torch.no_grad():
        state = model(torch.arange(7).unsqueeze(0)).cache
    return model, state, dump(state, model)


def check(data, model, state, same):
    """Whatever a file holds, it is refused in one way or is exactly what was saved."""
    for force in (False, True):
        try:
            same(parse(data, model, force=force)[0], state)
        except (StateFileError, FingerprintError) as error:
            assert len(str(error)) < 2_000  # noqa: PT017


def test_files_of_another_version_are_refused_in_one_sentence(whole):
    model, _, content = whole
    old = dataclasses.replace(STATE_FILE, version="1").dump(safetensors.torch.load(content), {})
    with pytest.raises(StateFileError, match="has version '1' and this is Titans for version 2: use the Titans that"):
        parse(old, model)


@settings(max_examples=400)
@given(st.data())
def test_damaged_files(whole, same, data):
    model, state, content = whole
    head = 8 + int.from_bytes(content[:8], "little")
    at = data.draw(st.one_of(st.integers(0, 16), st.integers(0, head), st.integers(0, len(content))))
    inserted = data.draw(st.binary(max_size=9))
    removed = data.draw(st.sampled_from((0, len(inserted), 1, 50, len(content))))
    check(content[:at] + inserted + content[at + removed :], model, state, same)


@settings(max_examples=100)
@given(st.data())
def test_flipped_bits_are_always_noticed(whole, data):
    model, _, content = whole
    head = 8 + int.from_bytes(content[:8], "little")
    at = data.draw(st.integers(8 * head, 8 * len(content) - 1))
    flipped = bytearray(content)
    flipped[at // 8] ^= 1 << at % 8
    with pytest.raises(StateFileError, match="checksum"):
        parse(bytes(flipped), model)


HUGE = 2**62
METADATA = {"format": "titans-memory-state", "version": "2"}


@pytest.mark.parametrize("header", [
    b"", b"{}", b"[" * 100_000, b'{"__metadata__":' * 50_000, b"\xff\xfe", b"null", b'{"__metadata__": 3}',
    b'{"__metadata__": {"format": "other"}}', b'{"__metadata__": {"format": 1}}',
    json.dumps({"__metadata__": METADATA}).encode(),
    json.dumps({"__metadata__": {**METADATA, "version": "1"}}).encode(),
    json.dumps({"__metadata__": {**METADATA, "config": "[" * 100_000, "created": "", "updated": ""}}).encode(),
    json.dumps({"x": {"dtype": "F32", "shape": [HUGE, HUGE], "data_offsets": [0, HUGE]}}).encode(),
], ids=range(13))  # fmt: skip
@pytest.mark.parametrize("claimed", [0, None, 2**40, 2**64 - 1])
def test_hostile_headers(whole, header, claimed):
    size = len(header) if claimed is None else claimed
    with pytest.raises(StateFileError):
        parse(size.to_bytes(8, "little") + header, whole[0])


def rewritten(content, tensors=None, integers=None, metadata=None):
    """The file with other tensors, integers or metadata, and a checksum that is right."""
    old, before = STATE_FILE.load(content)
    kept = {name: x for name, x in {**old, **(tensors or {})}.items() if x is not None}
    metadata = {**before, **(metadata or {})}
    if integers is not None:
        metadata["integers"] = json.dumps({**json.loads(before["integers"]), **integers})
    return STATE_FILE.dump(kept, metadata)


WEIGHT = "layers.0.0.memory.memory.weights.0"


@pytest.mark.parametrize(("changes", "message"), [
    ({"tensors": {WEIGHT: None}}, "lacks layers.0.0.memory.memory.weights.0"),
    ({"tensors": {"extra": torch.ones(1)}}, "holds extra"),
    ({"tensors": {WEIGHT: torch.ones(1, 2, 4, 9)}}, "expected the shape"),
    ({"tensors": {WEIGHT: torch.ones(2, 2, 8, 4)}}, "different numbers of them"),
    ({"tensors": {WEIGHT: torch.ones(1, 2, 8, 4).half()}}, "float16"),
    ({"tensors": {WEIGHT: torch.full((1, 2, 8, 4), torch.nan)}}, "not finite"),
    ({"tensors": {"empty": torch.ones(0, 3)}}, "different numbers of them"),
    ({"tensors": {"scalar": torch.tensor(1.0)}}, "different numbers of them"),
    ({"integers": {"layers.0.0.offset": 4}}, "beyond 0 to 3"),
    ({"integers": {"layers.0.0.memory.memory.offset": 3}}, "beyond 0 to 2"),
    ({"integers": {"layers.0.0.memory.memory.offset": -1}}, "beyond"),
    ({"integers": {"layers.0.0.offset": True}}, "integers"),
    ({"integers": {"layers.0.0.offset": 1.5}}, "integers"),
    ({"integers": {WEIGHT + "0": 1}}, "holds layers"),
    ({"tensors": {"layers.0.0.memory.writing": torch.ones(1)}}, "holds layers.0.0.memory.writing"),
    ({"integers": {"tokens": 2**63}}, "beyond"),
    ({"integers": {"tokens": None}}, "integers"),
    ({"metadata": {"integers": "[1]"}}, "integers"),
    ({"metadata": {"integers": "{"}}, "damaged"),
    ({"metadata": {"integers": "9" * 5_000}}, "damaged"),
    ({"metadata": {"config": "[]"}}, "header"),
    ({"metadata": {"created": "yesterday"}}, "header"),
    ({"metadata": {"tokens": "many"}}, "header"),
])  # fmt: skip
def test_lies_with_a_right_checksum(whole, changes, message):
    model, _, content = whole
    with pytest.raises(StateFileError, match=message):
        parse(rewritten(content, **changes), model)


def test_windows_hold_no_more_than_fits(make_model, read):
    model = make_model("swa", torch.float32)
    content = dump(read(model, 9)[1], model)
    with pytest.raises(StateFileError, match="counts from 6 to 6, beyond 0 to 5"):
        parse(rewritten(content, {"layers.0.0.filled": torch.tensor([6])}), model)


@pytest.mark.parametrize(("name", "change", "message"), [
    ("layers.0.0.filled", lambda x: x + 1, "counts from 8 to 8, beyond 0 to 7"),
    ("layers.0.0.keys", lambda x: x[:, 1:], "filled counts from 7 to 7, beyond 0 to 6"),
    ("layers.0.0.values", lambda x: x[:, 1:], r"values is torch.float32 \[1, 6, 8\], expected the shape \[1, 7, 8\]"),
    ("layers.0.0.keys", lambda x: x[..., 1:], r"keys is torch.float32 \[1, 7, 7\], expected the shape \[1, 7, 8\]"),
    ("layers.0.0.keys", lambda x: x[:, 0], "keys is"),
    ("segment.memory", lambda x: x[:, :1], r"memory is torch.float32 \[1, 1, 8\], expected the shape \[1, 2, 8\]"),
])  # fmt: skip
def test_lies_about_what_grows(make_model, read, name, change, message):
    model = make_model("rmt" if "segment" in name else "transformer", torch.float32)
    state = read(model, 7)[1]
    content = dump(state, model)
    spoilt = change(dict(flatten(state))[name]).contiguous()
    with pytest.raises(StateFileError, match=message):
        parse(rewritten(content, {name: spoilt}), model)


def test_a_state_that_could_not_be_read_back_is_not_written(tiny, read, tmp_path):
    _, state = read(tiny, 3)
    for broken in (state.map(lambda x: x * torch.nan if x.is_floating_point() else x), state.to(torch.float16)):
        with pytest.raises(StateFileError, match="cannot be saved"):
            save_state(broken, tmp_path / "state")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_bytes(b"")])
def test_what_is_no_file(tiny, tmp_path, make):
    make(tmp_path / "state")
    with pytest.raises(StateFileError, match="state"):
        load_state(tmp_path / "state", tiny)


# Parts that a new state lacks ----------------------------------------------------------------------------------


GATED = WritePolicy("gated", (0.5,) * 9, (1.0,) * 9, (0.25,) * 9, decay=1e-3)


def follow(policy, state):
    """Start a policy, for as many memory layers as the state has."""
    layers = sum(name.endswith("memory.weights.0") for name, _ in flatten(state))
    numbers = {name: getattr(policy, name)[:layers] for name in ("threshold", "mean", "deviation")}
    return dataclasses.replace(policy, **numbers).start(state)


@pytest.mark.parametrize("policy", [GATED, WritePolicy("always"), WritePolicy("never", largest_z=math.inf)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_policies_are_kept(make_model, variant, read, same, policy, dtype):
    model = make_model(variant, dtype, fresh=True)
    _, state = read(model, 9, follow(policy, model.initial_state(2)), rows=2)
    loaded, _ = parse(dump(state, model), model)
    same(loaded, state)
    assert [x.dtype for x in loaded.tensors()] == [x.dtype for x in state.tensors()]


@pytest.fixture(scope="module")
def gated(whole):
    """A model, and the file of a state that follows a gated policy."""
    model, state, _ = whole
    return model, dump(follow(GATED, state), model)


FLOATS = ("threshold", "mean", "deviation", "largest_z", "smoothing", "decay", "smoothed", "activity")


@pytest.mark.parametrize(("field", "values"), [
    ("threshold", [math.nan]),
    ("mean", [math.nan, math.inf]),
    ("deviation", [-0.1, math.nan, math.inf]),
    ("largest_z", [0.0, -1.0, math.nan]),
    ("smoothing", [-0.1, 1.0, 2.0, math.nan]),
    ("decay", [-1e-3, 0.11, math.nan]),
    ("smoothed", [math.nan, -math.inf]),
    ("activity", [-0.1, math.inf, math.nan]),
])  # fmt: skip
def test_a_policy_out_of_range_is_refused(gated, field, values):
    model, content = gated
    name = f"layers.0.0.memory.writing.{field}"
    for value in values:
        with pytest.raises(StateFileError, match=name):
            parse(rewritten(content, {name: torch.tensor([value])}), model)


def test_a_policy_has_the_types_of_the_model(gated):
    """One of another type would give it to all rows of a batch."""
    model, content = gated
    for field in (*FLOATS, "written", "skipped", "dropped"):
        name = f"layers.0.0.memory.writing.{field}"
        right = torch.float32 if field in FLOATS else torch.int64
        for dtype in {torch.int64, torch.int32, torch.float32, torch.float64} - {right}:
            with pytest.raises(StateFileError, match=f"{name} is {dtype}"):
                parse(rewritten(content, {name: torch.zeros(1, dtype=dtype)}), model)
        for wrong in (None, torch.zeros(1, 1, dtype=right)):
            with pytest.raises(StateFileError, match=name):
                parse(rewritten(content, {name: wrong}), model)
    with pytest.raises(StateFileError, match="written counts from -1"):
        parse(rewritten(content, {"layers.0.0.memory.writing.written": torch.tensor([-1])}), model)


# Crashes -------------------------------------------------------------------------------------------------------


def test_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, type(tmp_path).replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (events.append("folder" if os.path.isdir(f"/dev/fd/{fd}") else "file"), fsync(fd))
    )
    monkeypatch.setattr(type(tmp_path), "replace", lambda a, b: (events.append("name"), replace(a, b)))
    atomic.write(tmp_path / "x", b"1")
    assert events == ["file", "name", "folder"]


@pytest.mark.slow
def test_killed_while_saving_leaves_the_old_or_the_new_state(whole, tmp_path):
    model, _, _ = whole
    model.save_pretrained(tmp_path / "model")
    code = """
import os, random, signal, time
from titans import MemoryStore
model, path = TitansForCausalLM.from_pretrained(sys.argv[1]).eval(), sys.argv[2]
with torch.no_grad():
    state = model(torch.arange(7).unsqueeze(0)).cache
save_state(state, path)
store = MemoryStore(path + "-store", model)
store.put("t", "s", state, expected=0)
kills = 0
while state.tokens < 7 + 200 or kills < 25:
    pid = os.fork()
    if pid == 0:
        while True:
            version = store.get("t", "s").version
            state.tokens += 1
            save_state(state, path)
            store.put("t", "s", state, expected=version)
    time.sleep(random.uniform(0, 0.6))
    os.kill(pid, signal.SIGKILL)
    kills += 1
    os.waitpid(pid, 0)
    saved, stored = load_state(path, model).tokens, store.get("t", "s").state.tokens
    assert saved - stored in (0, 1), (saved, stored)
    state.tokens = stored
print(state.tokens - 7, kills)
"""
    saves, kills = map(int, run(code, tmp_path / "model", tmp_path / "state").split())
    assert saves >= 200
    assert kills >= 25
