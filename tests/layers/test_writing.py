"""Gated writing equals the rule read literally, one token at a time; always and never are what they say."""

import dataclasses
import itertools
import math

import pytest
import torch

from titans.layers.writing import WriteState, decide
from titans.ops import associative_memory, initial_state

LAYERS = (
    "memory",
    "memory-matrix",
    "memory-three",
    "memory-learning",
    "memory-chunk",
    "memory-plain",
    "memory-no-forgetting",
    "memory-channelwise",
    "memory-chunk-gates",
    "memory-token",
    "memory-token-channelwise",
)
COUNTERS = ("written", "skipped", "dropped")


@pytest.fixture(scope="module", params=LAYERS)
def layer(request, make_mixer):
    return make_mixer(request.param)


def tokens(rows, count, seed=0):
    return torch.randn(rows, count, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def write_state(rows, **values):
    """A write state of float64 rows: every token is written unless the values say otherwise."""
    start = {"threshold": -math.inf, "mean": 0, "deviation": 1, "largest_z": 3, "smoothing": 0.8, "decay": 0}
    start |= {"smoothed": 0, "activity": 0} | values
    numbers = {name: torch.as_tensor(x, dtype=torch.float64).expand(rows) for name, x in start.items()}
    return WriteState(**numbers, **dict.fromkeys(COUNTERS, torch.zeros(rows, dtype=torch.int64)))


@torch.no_grad()
def gated(layer, x):
    """A policy under which each row writes some of x, skips some and drops some.

    Searched for, because writing changes the surprise of all that follows, in these random layers by orders of
    magnitude.
    """
    rows, start = len(x), layer.initial_state(len(x))
    norms = [layer(x, start, return_surprise=True)[2].mean(-1)]
    norms.append(layer(x, follow(start, write_state(rows, threshold=math.inf)), return_surprise=True)[2].mean(-1))
    norm = torch.cat(norms)
    for low, high in itertools.product((0.3, 0.4, 0.5, 0.6, 0.7), (0.8, 0.9, 0.95, 0.99)):
        threshold, mean, large = (norm.quantile(q) for q in (low, 0.5, high))
        values = {"threshold": threshold, "mean": mean, "deviation": (large - mean) / 1.5, "largest_z": 1.5}
        writing = write_state(rows, **values, decay=0.15, smoothed=threshold)
        found = layer(x, follow(start, writing))[1].writing
        if all((getattr(found, name) > 0).all() for name in COUNTERS):
            return writing
    raise AssertionError("no policy writes, skips and drops")


def follow(state, writing):
    return dataclasses.replace(state, writing=writing)


def finite(state):
    """A state that `close` compares: thresholds may be infinite."""
    return state.map(lambda x: x.clamp(-1e6, 1e6))


def literally(layer, literal, x, writing):
    """Outputs, memory and write state of one row `[1, T, D]`: plain Python over the reference op, token by token."""
    w = {name: float(getattr(writing, name)[0]) for name in (f.name for f in dataclasses.fields(writing))}
    chunk, rule = layer.options["chunk_size"], layer.options["rule"]
    persistent = 0 if layer.persistent is None else len(layer.persistent)
    if persistent:
        x = torch.cat([layer.persistent.unsqueeze(0), x], 1)
    q, k, v = literal.queries(x), literal.project(1, x), literal.project(2, x)
    k, v = (
        literal.features(k / k.norm(dim=-1, keepdim=True)),
        v / (v.square().mean(-1, keepdim=True).sqrt() / 10).clamp(min=1),
    )
    theta, alpha, eta = literal.gates(x)
    options = {**layer.options, **literal.network_options(), "backend": "naive", "return_surprise": True}
    memory, reads = initial_state(literal.weights), []
    for t in range(x.shape[1]):
        one = slice(t, t + 1)
        inputs = [z[:, one] for z in (literal.features(q), k, v, theta, alpha, eta)]
        _, _, norm = associative_memory(*inputs, memory, **options)
        g, fate = float(norm.mean()), "written"
        if t >= persistent:
            above = g - w["mean"]
            if above / w["deviation"] > w["largest_z"]:
                fate = "dropped"
            else:
                w["smoothed"] = w["smoothing"] * w["smoothed"] + (1 - w["smoothing"]) * g
                fate = "written" if w["smoothed"] > w["threshold"] else "skipped"
            w["mean"] += 0.01 * above
            w["deviation"] = math.sqrt(0.99 * w["deviation"] ** 2 + 0.01 * above**2)
            w["activity"] = w["smoothing"] * w["activity"] + (fate == "written")
            w[fate] += 1
            inputs[4] = 1 - (1 - inputs[4]) * (1 - w["decay"] * w["activity"])
        if fate == "written":
            y, memory, _ = associative_memory(*inputs, memory, **options)
        else:
            y = literal.recall(q[:, one], memory.weights)
            if rule == "chunk" or len(memory.weights) > 1:
                offset = (memory.offset + 1) % chunk
                anchor = memory.anchor if offset else memory.weights
                memory = dataclasses.replace(memory, offset=offset, anchor=anchor)
        reads.append(y)
    return literal.read_out(torch.cat(reads, 1), x)[:, persistent:], memory, w


@torch.no_grad()
def test_equals_the_literal_rule(layer, literal_memory, close):
    x = tokens(1, 38)
    start = layer.initial_state(1)
    writing = gated(layer, x)
    y, state = layer(x, follow(start, writing))
    expected, memory, values = literally(layer, literal_memory(layer), x, writing)
    close((y, state.memory), (expected, memory), 1e-10)
    for name, value in values.items():
        assert float(getattr(state.writing, name)) == pytest.approx(value, rel=1e-10), name
    assert sum(getattr(state.writing, name) for name in COUNTERS) == 38


@torch.no_grad()
def test_splits_rows_and_padding(layer, close, same):
    """Rows with policies of their own, padded anywhere and cut anywhere: each equals its own tokens in one call."""
    x, generator = tokens(4, 31, 1), torch.Generator().manual_seed(2)
    mask = torch.rand(4, 31, generator=generator) < 0.7
    writing = gated(layer, x)
    threshold = torch.cat([writing.threshold[:2], torch.tensor([-math.inf, math.inf], dtype=torch.float64)])
    start = follow(layer.initial_state(4), dataclasses.replace(writing, threshold=threshold))
    kept, outputs, state, first = start.clone(), [], start, 0
    for length in (4, 1, 9, 2, 1, 14):
        here = slice(first, first + length)
        y, state = layer(x[:, here], state, mask[:, here])
        outputs.append(y)
        first += length
    same(start, kept, "the given state")
    y = torch.cat(outputs, 1)
    for row in range(4):
        alone, final = layer(x[row : row + 1, mask[row]], start.row(row))
        close(y[row : row + 1, mask[row]], alone, 1e-10)
        close(finite(state.row(row)), finite(final), 1e-10)
    assert not y[~mask].any()
    assert sum(getattr(state.writing, name)[:2] for name in COUNTERS).tolist() == mask[:2].sum(1).tolist()
    assert not state.writing.dropped[2:].any()
    assert torch.equal(state.writing.written[2], mask[2].sum())
    assert torch.equal(state.writing.skipped[3], mask[3].sum())


@torch.no_grad()
@pytest.mark.parametrize("measured", [False, True])  # alone, or in a batch whose other row is gated
def test_always_is_the_plain_path(layer, close, measured):
    x = tokens(2, 20)
    writing = write_state(2)
    if measured:
        writing = dataclasses.replace(writing, threshold=torch.tensor([-math.inf, 1.0], dtype=torch.float64))
    y, state = layer(x, follow(layer.initial_state(2), writing))
    plain, without = layer(x, layer.initial_state(2))
    close(y[:1], plain[:1], 1e-10)
    close(state.row(0).memory, without.row(0).memory, 1e-10)
    after = state.writing
    assert (int(after.written[0]), int(after.skipped[0]), int(after.dropped[0])) == (20, 0, 0)
    assert float(after.activity[0]) == pytest.approx(sum(0.8**i for i in range(20)), rel=1e-12)
    assert float(after.smoothed[0]) == 0


@torch.no_grad()
@pytest.mark.parametrize("measured", [False, True])
def test_never_leaves_the_memory_alone(layer, close, same, measured):
    x = tokens(2, 20)
    _, start = layer(x[:, :5])
    writing = write_state(2, threshold=math.inf, activity=2.0)
    if measured:
        writing = dataclasses.replace(writing, threshold=torch.tensor([math.inf, 0.0], dtype=torch.float64))
    y, state = layer(x, follow(start, writing))
    close(y[:1], layer.read(x, start)[:1], 1e-12)
    before, after = start.row(0).memory, state.row(0).memory
    same((after.weights, after.surprise), (before.weights, before.surprise))
    same(after.anchor, before.weights)  # several chunks have ended
    counts = [int(getattr(state.writing, name)[0]) for name in COUNTERS]
    assert counts == [0, 20, 0]
    assert float(state.writing.activity[0]) == pytest.approx(2 * 0.8**20, rel=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("measured", [False, True])
def test_writing_can_be_switched_off_inside_a_chunk(make_mixer, literal_memory, close, measured):
    """The anchor of the open chunk stays until that chunk ends, also where nothing is measured."""
    layer, x = make_mixer("memory-matrix"), tokens(1, 12)  # chunks of 3
    _, state = layer(x[:, :4])
    never = write_state(1, threshold=math.inf)
    _, inside = (
        layer(x[:, 4:5], follow(state, never), return_surprise=True)[:2]
        if measured
        else layer(x[:, 4:5], follow(state, never))
    )
    _, ended = layer(x[:, 5:6], inside)
    close(inside.memory.anchor, state.memory.anchor, 0.0)
    assert inside.memory.offset == 2
    close(ended.memory.anchor, state.memory.weights, 0.0)
    assert not torch.equal(state.memory.anchor[0], state.memory.weights[0])


def test_decide_by_hand():
    state = write_state(
        2, threshold=2.0, mean=1.0, deviation=1.0, largest_z=4.0, smoothing=0.5, decay=0.25, smoothed=1.0
    )
    norm = torch.tensor([[4.0, 9.0, 1.0, 4.0], [3.0, 4.0, 1.0, 8.0]], dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [True, False, True, True]])
    after, decision = decide(state, norm, mask)
    # row 0: s = 2.5, (2.5), 1.75, 2.875; row 1: s = 2 (not above), -, 1.5, dropped
    assert decision.written.tolist() == [[True, False, False, True], [False] * 4]
    assert decision.dropped.tolist() == [[False, True, False, False], [False, False, False, True]]
    assert after.smoothed.tolist() == [2.875, 1.5]
    assert after.activity.tolist() == [1.125, 0.0]
    assert decision.kept[0, [0, 3]].tolist() == [0.75, 1 - 0.25 * 1.125]
    assert [getattr(after, name).tolist() for name in COUNTERS] == [[2, 0], [1, 2], [1, 1]]
