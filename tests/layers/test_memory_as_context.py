"""MAC against its definition: retrieve, attend, update, read, one token at a time."""

import pytest
import torch

from titans.layers.memory_as_context import MemoryAsContext


def rms_norm(x, scale=1.0):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * scale


def written_out(layer, x, literal_memory, literal_attention):
    """The outputs `[B, T, D]` of whole streams, after docs/semantics.md, section 5."""
    memory, attention = literal_memory(layer.memory), literal_attention(layer.attention)
    size, learned = layer.segment_length, layer.retrieval
    queries = memory.queries(x, layer.retrieval_proj)
    context = memory.weights
    ys, outputs = [], []
    for start in range(0, x.shape[1], size):
        stop = min(start + size, x.shape[1])
        if learned is None:
            asked = queries[:, start:stop]
        else:
            asked = memory.queries(learned.expand(len(x), -1, -1), layer.retrieval_proj)
        retrieved = memory.recall(asked, context)
        if layer.retrieval_norm is not None:
            retrieved = rms_norm(retrieved, layer.retrieval_norm.weight)
        retrieved = retrieved.flatten(2)
        for i in range(stop - start):
            if learned is None:
                seen = [(retrieved[:, j], j) for j in range(i + 1)]
            else:
                seen = [(retrieved[:, j], None) for j in range(len(learned))]
            seen += [(start + j, j) for j in range(i + 1)]
            y = attention(x, start + i, i, seen)
            ys.append(y if layer.gate is None else rms_norm(x[:, start + i] + y))
        # Every token so far is written again from the start: slow, and nothing is carried that could be wrong.
        read, state = memory.write(torch.stack(ys, 1))
        y = torch.stack(ys[start:], 1)
        if layer.gate is None:
            outputs.append(y * read[:, start:])
        else:
            passed = layer.gate.scale * y + layer.gate.shift
            outputs.append(passed * torch.sigmoid(rms_norm(read[:, start:], layer.gate.memory_norm.weight)))
        context = state.weights
    return torch.cat(outputs, 1)


@pytest.mark.parametrize(
    "name",
    [
        "context",
        "context-paper",
        "context-paper-retrieved",
        "context-retrieved",
        "context-bare",
        "context-token",
        "context-chunk-gates",
        "context-gate-floor",
    ],
)
def test_equals_mac_written_out(make_mixer, literal_memory, literal_attention, close, name):
    layer = make_mixer(name)
    x = torch.randn(2, 13, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))  # 2.6 segments
    with torch.no_grad():
        close(layer(x)[0], written_out(layer, x, literal_memory, literal_attention), 1e-9)


def test_recomputed_segments_give_equal_gradients(make_mixer, close, monkeypatch):
    layer = make_mixer("context")
    x = torch.randn(1, 83, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parameters = dict(layer.named_parameters())

    def gradients():
        y, state = layer(x)
        total = y.sin().sum() + state.context[0].sum()
        return dict(zip(parameters, torch.autograd.grad(total, tuple(parameters.values())), strict=True))

    kept = gradients()
    monkeypatch.setattr("titans.layers.memory_as_context.SEGMENTS", 4)
    close(gradients(), kept, 1e-8)


@pytest.mark.parametrize(("options", "message"), [
    ({"segment_length": 0}, "segment_length=0"),
    ({"segment_length": -5}, "segment_length=-5"),
    ({"segment_length": 5, "retrieved_tokens": 0}, "retrieved_tokens=0"),
])  # fmt: skip
def test_options_that_cannot_work(make_mixer, options, message):
    layer = make_mixer("context")
    with pytest.raises(ValueError, match=message):
        MemoryAsContext(layer.attention, layer.memory, **options)


def test_states_of_other_segments(make_mixer):
    layer = make_mixer("context")
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    _, state = MemoryAsContext(layer.attention, layer.memory, 4).double()(x)
    with pytest.raises(ValueError, match="another configuration"):
        layer(x, state)
