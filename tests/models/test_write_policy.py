"""A policy rides in the state: any split, padding, rows of different policies, generation; and its file."""

import dataclasses
import itertools
import json
import math
import os

import pytest
import torch

from titans import MemoryState, TitansError, WritePolicy, watch
from titans.layers.neural_memory import NeuralMemoryState
from titans.models.write_policy import WriteCounts, memory_norm, memory_norms, write_counts

VOCABULARY = 23


def text(batch, count, seed=0):
    return torch.randint(VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(seed))


def some(batch, count, seed=1):
    """Which positions hold a token: about two thirds."""
    return torch.rand(batch, count, generator=torch.Generator().manual_seed(seed)) < 0.7


def read(model, ids, state=None, mask=None):
    with torch.no_grad():
        out = model(ids, attention_mask=mask, cache=state, use_cache=True)
    return out.logits, out.cache


def memories(state):
    found = []
    for layer in state.layers:
        for part in layer:
            found += [x for x in (part, getattr(part, "memory", None)) if isinstance(x, NeuralMemoryState)]
    return found


def finite(state):
    return state.map(lambda x: x.clamp(-1e6, 1e6))


@pytest.fixture(scope="module")
def policy(model):
    """A gated policy under which a row of the texts below is written, skipped and dropped in part (layers together).

    Searched for, because writing changes the surprise of all that follows, in these random models by a lot.
    """
    start, norms = model.initial_state(1), []
    layers = len(memories(start))
    for write in ("always", "never"):
        with watch(model) as trace:
            read(model, text(4, 33), WritePolicy(write).start(model.initial_state(4)))
        norms.append([torch.cat([trace.layer(i, row).surprise for row in range(4)]) for i in range(layers)])
    norms = [torch.cat(pair) for pair in zip(*norms, strict=True)]
    for low, high in itertools.product((0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8), (0.65, 0.75, 0.85, 0.95, 0.99)):
        threshold, mean, large = (tuple(float(x.quantile(q)) for x in norms) for q in (low, 0.5, high))
        deviation = tuple((a - b) / 1.5 for a, b in zip(large, mean, strict=True))
        policy = WritePolicy("gated", threshold, mean, deviation, smoothing=0.5, largest_z=1.5, decay=0.1)
        ids = text(4, 33)[:1, some(4, 33)[0]]
        counts = write_counts(read(model, ids, policy.start(start))[1])[0]
        if not layers or min(counts.written, counts.skipped, counts.dropped) > 0:
            return policy
    raise AssertionError("no policy writes, skips and drops")


def mixed(model, policy):
    """Four rows: gated, always, never, and gated with another decay."""
    rows = [policy, WritePolicy("always"), WritePolicy("never"), dataclasses.replace(policy, decay=0.0)]
    return MemoryState.cat([p.start(model.initial_state(1)) for p in rows])


def test_splits_rows_and_padding(model, policy, close, same):
    ids, mask = text(4, 33), some(4, 33)
    start = mixed(model, policy)
    kept, state, outputs, first = start.clone(), start, [], 0
    for length in (4, 1, 10, 2, 1, 15):
        here = slice(first, first + length)
        logits, state = read(model, ids[:, here], state, mask[:, here].long())
        outputs.append(logits)
        first += length
    same(start, kept, "the given state")
    logits, counts = torch.cat(outputs, 1), write_counts(state)
    for row in range(4):
        alone, final = read(model, ids[row : row + 1, mask[row]], start.row(row))
        close(logits[row : row + 1, mask[row]], alone, 1e-10)
        close(finite(state.row(row)).layers, finite(final).layers, 1e-10)
        assert counts[row] == write_counts(final)[0]
        assert counts[row].total == int(mask[row].sum()) * counts[row].layers
    if counts[0].layers:
        assert min(counts[0].written, counts[0].skipped, counts[0].dropped) > 0
        assert counts[1].skipped == counts[1].dropped == 0 < counts[1].written
        assert counts[2].written == counts[2].dropped == 0 < counts[2].skipped


def test_always_is_the_plain_path(model, policy, close):
    ids = text(4, 21)
    logits, state = read(model, ids, mixed(model, policy))
    plain, without = read(model, ids)
    close(logits[1], plain[1], 1e-10)
    for a, b in zip(memories(state.row(1)), memories(without.row(1)), strict=True):
        close(dataclasses.replace(a, writing=None), b, 1e-10)


def test_never_keeps_what_the_persistent_tokens_left(model, same):
    start = model.initial_state(2)
    _, state = read(model, text(2, 9), WritePolicy("never").start(start))
    for a, b in zip(memories(state), memories(start), strict=True):
        same((a.memory.weights, a.memory.surprise), (b.memory.weights, b.memory.surprise))
    assert memory_norm(state) == memory_norm(start)


def test_a_state_without_memory_layers_is_left_as_it_is(make_model, same):
    start = make_model("swa").initial_state(2)
    for policy in (WritePolicy("always"), WritePolicy("gated", (1.0,), (1.0,), (1.0,))):
        started = policy.start(start)
        same(started, start)
        assert write_counts(started) == [WriteCounts(0, 0, 0, 0)] * 2
        assert memory_norm(started) == [0.0, 0.0]


def test_start_keeps_counters_and_what_was_measured(make_model, same):
    model = make_model("lmm")
    gated = WritePolicy("gated", (1.0, 1.0), (2.0, 3.0), (9.0, 9.0))
    _, state = read(model, text(2, 8), gated.start(model.initial_state(2)))
    again = gated.start(state)
    same(again, state)  # a request that names the policy of its session changes nothing
    other = WritePolicy("never").start(state)
    assert write_counts(other) == write_counts(state)
    assert [float(m.writing.smoothed[0]) for m in memories(gated.start(other))] == [2.0, 3.0]
    assert write_counts(model.initial_state(2)) == [WriteCounts(0, 0, 0, 2)] * 2
    assert write_counts(state)[0].total == 16


def test_mixes_with_a_state_without_policy(make_model, close):
    """A server that batches rows gives those without a policy the policy "always"."""
    model = make_model("mac")
    plain, gated = model.initial_state(1), WritePolicy("gated", (9.0, 9.0), (9.0, 9.0), (9.0, 9.0))
    with pytest.raises(ValueError, match="different structure"):
        MemoryState.cat([plain, gated.start(plain)])
    both = MemoryState.cat([WritePolicy("always").start(plain), gated.start(plain)])
    ids = text(2, 11)
    close(read(model, ids, both)[0][0], read(model, ids[:1], plain)[0][0], 1e-10)


def test_memory_norm(make_model):
    state = make_model("lmm").initial_state(2)
    squares = [sum(float(w[0].detach().square().sum()) for w in m.memory.weights) for m in memories(state)]
    assert len(squares) > 1
    assert memory_norm(state) == pytest.approx([math.sqrt(sum(squares))] * 2)
    for row in memory_norms(state):
        assert row == pytest.approx([math.sqrt(square) for square in squares])
    assert memory_norms(make_model("swa").initial_state(3)) == [[], [], []]


@pytest.mark.parametrize("variant", ["lmm", "mac"])
def test_generates_under_a_policy(make_model, variant):
    model = make_model(variant)
    policy = WritePolicy("never")
    ids, options = text(1, 6), {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    found = model.generate(ids, cache=policy.start(model.initial_state(1)), return_dict_in_generate=True, **options)
    expected = ids
    for _ in range(8):
        logits, _ = read(model, expected, policy.start(model.initial_state(1)))
        expected = torch.cat([expected, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(found.sequences, expected)
    assert write_counts(found.cache) == [WriteCounts(0, 13 * 2, 0, 2)]  # the last token was not read


# The file ---------------------------------------------------------------------------------------------------

GOOD = WritePolicy("gated", (1.0, 2.5), (0.5, 1 / 3), (0.1, 0.2), decay=3e-5)


def test_file_round_trip(tmp_path):
    assert WritePolicy.load(tmp_path) is None
    GOOD.save(tmp_path)
    assert WritePolicy.load(tmp_path) == GOOD
    dataclasses.replace(GOOD, decay=5e-5).save(tmp_path)
    assert WritePolicy.load(tmp_path).decay == 5e-5
    assert [path.name for path in tmp_path.iterdir()] == ["write_policy.json"]


def test_a_failed_save_leaves_the_old_file_alone(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("disk full")

    GOOD.save(tmp_path)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        dataclasses.replace(GOOD, decay=5e-5).save(tmp_path)
    assert WritePolicy.load(tmp_path) == GOOD
    assert [path.name for path in tmp_path.iterdir()] == ["write_policy.json"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threshold": [1.0, math.nan]}, "threshold=.* must hold one finite number per memory layer"),
        ({"threshold": [1.0]}, "1 thresholds, 2 means and 2 deviations"),
        ({"mean": "ab"}, "mean='ab' must hold"),
        ({"deviation": [1.0, -1.0]}, "deviation=-1.0 must be"),
        ({"decay": math.nan}, "decay=nan must be"),
        ({"decay": 0.2}, "decay=0.2 must be"),
        ({"smoothing": 1.0}, "smoothing=1.0 must be"),
        ({"largest_z": True}, "largest_z=True must be"),
        ({"write": "often"}, "write='often' is unknown"),
        ({"extra": 1}, "is no write policy: expected an object with"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, says):
    values = {"best": "gated", **dataclasses.asdict(GOOD), **change}
    (tmp_path / "write_policy.json").write_text(json.dumps(values))
    with pytest.raises(TitansError, match=says):
        WritePolicy.load(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[1]", b"null"])
def test_files_that_are_no_policy_are_refused(tmp_path, data):
    (tmp_path / "write_policy.json").write_bytes(data)
    with pytest.raises(TitansError, match=r"write_policy\.json is no (JSON file|write policy)"):
        WritePolicy.load(tmp_path)


def test_refuses_a_model_of_another_depth(make_model):
    with pytest.raises(TitansError, match="for 2 memory layers and the model has 3"):
        GOOD.start(make_model("lmm", num_hidden_layers=3).initial_state(1))
