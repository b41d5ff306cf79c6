"""What `watch` records: every token once, in reading order, whatever the variant, the padding and the pieces."""

import pytest
import torch

from titans import NeuralMemory, WritePolicy, watch
from titans.models.write_policy import write_counts

VOCABULARY = 23


def text(batch, count, seed=0):
    return torch.randint(VOCABULARY, (batch, count), generator=torch.Generator().manual_seed(seed))


def memory_layers(model):
    return [layer for layer in model.modules() if isinstance(layer, NeuralMemory)]


def policy(model):
    """Thresholds a little below the middle of what an untouched memory is surprised by."""
    layers = len(memory_layers(model))
    with watch(model) as trace, torch.no_grad():
        model(text(1, 40, 7), cache=WritePolicy("never").start(model.initial_state(1)))
    middle = tuple(float(trace.layer(i, 0).surprise.median()) for i in range(layers))
    below, spread = (tuple(share * x for x in middle) for share in (0.95, 0.3))
    return WritePolicy("gated", below, middle, spread, decay=0.0)


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
def test_any_split_and_padding(model, close, gated):
    ids, generator = text(3, 30), torch.Generator().manual_seed(1)
    mask = torch.rand(3, 30, generator=generator) < 0.6
    start = policy(model).start(model.initial_state(3)) if gated else None
    with watch(model) as trace:
        state, first = start, 0
        for length in (5, 1, 13, 1, 10):
            here = slice(first, first + length)
            state = model(ids[:, here], attention_mask=mask[:, here].long(), cache=state).cache
            first += length
    layers = len(memory_layers(model))
    for row in range(3):
        with watch(model) as alone:
            own = None if start is None else start.row(row)
            final = model(ids[row : row + 1, mask[row]], cache=own).cache
        found, expected = trace.tokens(row), alone.tokens(0)
        assert len(found) == len(expected) == (int(mask[row].sum()) if layers else 0)
        if not layers:
            continue
        close(torch.tensor(found, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), 1e-10)
        counts = write_counts(final)[0]
        written, dropped = (round(layers * sum(getattr(t, name) for t in found)) for name in ("written", "dropped"))
        assert (written, dropped) == ((counts.written, counts.dropped) if gated else (len(found) * layers, 0))
        if gated:
            assert 0 < written < layers * len(found)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["lmm", "mag", "mal", "mac"])
def test_surprise_is_that_of_the_layer(make_model, close, variant):
    """Against the memory layers called by hand on what the model gave them."""
    model, ids = make_model(variant), text(2, 13)
    given = []
    hooks = []
    for layer in memory_layers(model):
        mix = layer.mix

        def spy(x, state, lengths, layer=layer, mix=mix):
            given.append((layer, x, state))
            return mix(x, state, lengths)

        layer.mix = spy
        hooks.append(layer)
    with watch(model) as trace:
        model(ids)
    for layer in hooks:
        del layer.mix
    for index, layer in enumerate(memory_layers(model)):
        parts = [layer(x, state, return_surprise=True)[2].mean(-1) for of, x, state in given if of is layer]
        for row in range(2):
            close(trace.layer(index, row).surprise, torch.cat(parts, 1)[row], 1e-10)


@torch.no_grad()
def test_watching_changes_nothing_and_ends(make_model, same):
    model, ids = make_model("lmm"), text(1, 9)
    start = WritePolicy("never").start(model.initial_state(1))
    plain, kept = model(ids), model(ids, cache=start)
    with watch(model) as trace:
        watched, closed = model(ids), model(ids, cache=start)
    same((watched.logits, watched.cache), (plain.logits, plain.cache))
    same((closed.logits, closed.cache), (kept.logits, kept.cache))
    assert len(trace.tokens(0)) == 18
    assert [t.written for t in trace.tokens(0)] == [1.0] * 9 + [0.0] * 9
    model(ids)
    assert len(trace.tokens(0)) == 18
    with pytest.raises(RuntimeError, match="inside"), watch(model):
        raise RuntimeError("inside")
    with watch(model), pytest.raises(ValueError, match="being watched already"), watch(model):
        pass
    assert all(layer.observer is None for layer in memory_layers(model))


def test_forgotten_is_what_the_forget_gates_say(make_model, close):
    """Against the gates of the only layer, called by hand."""
    model, ids = make_model("lmm", num_hidden_layers=1), text(2, 9)
    (layer,) = memory_layers(model)
    with torch.no_grad(), watch(model) as trace:
        model(ids)
    hidden = model.model.layers[0].mixer_norms[0](model.model.embed_tokens(ids))
    hidden = hidden / hidden.square().mean(-1, keepdim=True).sqrt().clamp(min=1)
    alpha = (layer.gates(hidden)[..., -layer.num_heads :] - 8).sigmoid()  # step, momentum, forgetting
    for row in range(2):
        close([t.forgotten for t in trace.tokens(row)], alpha[row].mean(1).tolist(), 1e-10)
