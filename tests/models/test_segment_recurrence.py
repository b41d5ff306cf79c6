"""RMT written out: whole segments between two copies of the memory, through a plain causal transformer."""

import pytest
import torch
import torch.nn.functional as F

from titans.models.segment_recurrence import SegmentRecurrence


def text(batch, count, seed=0):
    return torch.randint(23, (batch, count), generator=torch.Generator().manual_seed(seed))


def norm(x, layer):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * layer.weight


def heads(x):
    return x.view(*x.shape[:2], 2, 4).transpose(1, 2)


def rotate(x):
    """Of 4 channels the first two are a pair that turns by its position."""
    a, b = x[..., 0], x[..., 1]
    angle = torch.arange(x.shape[2], dtype=x.dtype)
    turned = torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
    return torch.cat([turned, x[..., 2:]], -1)


def transformer(model, x):
    """Blocks of causal attention and SwiGLU, and the final norm."""
    for block in model.model.layers:
        attention = block.mixers[0].attention
        z = norm(x, block.mixer_norms[0])
        q = rotate(heads(z @ attention.q_proj.weight.T))
        k = rotate(heads(z @ attention.k_proj.weight.T))
        scores = (q @ k.mT / 2).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf)
        y = (scores.softmax(-1) @ heads(z @ attention.v_proj.weight.T)).transpose(1, 2).flatten(2)
        x = x + y @ attention.o_proj.weight.T
        z, mlp = norm(x, block.feed_forward_norm), block.feed_forward
        x = x + (F.silu(z @ mlp.gate_proj.weight.T) * (z @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    return norm(x, model.model.norm)


def written_out(model, ids, segment=4, count=2):
    """Logits, and the memory tokens after the last whole segment."""
    memory, outputs = model.model.recurrence.memory.expand(len(ids), -1, -1), []
    for part in ids.split(segment, 1):
        x = torch.cat([memory, model.model.embed_tokens.weight[part], memory], 1)
        y = transformer(model, x)
        outputs.append(y[:, count:-count])
        if part.shape[1] == segment:
            memory = y[:, -count:]
    return torch.cat(outputs, 1) @ model.lm_head.weight.T, memory


@pytest.mark.parametrize("count", [3, 4, 5, 8, 18])
def test_equals_segments_written_out(make_model, close, count):
    model, ids = make_model("rmt"), text(2, count)
    with torch.no_grad():
        expected, memory = written_out(model, ids)
        found = model(ids)
    close((found.logits, found.cache.segment.memory), (expected, memory), 1e-11)
    assert found.cache.segment.offset == count % 4


def test_nothing_but_the_memory_passes_from_segment_to_segment(make_model, close):
    """The tokens of the second segment see the first only through what was written at its end."""
    model, ids = make_model("rmt"), text(2, 8)
    with torch.no_grad():
        first = model(ids[:, :4]).cache
        assert all(layer[0].length == 0 for layer in first.layers)
        other = model(text(2, 4, seed=1)).cache
        assert not torch.allclose(other.segment.memory, first.segment.memory)
        other.segment = first.segment
        close(model(ids[:, 4:], cache=other).logits, model(ids).logits[:, 4:], 1e-11)


def test_gradients_equal_those_of_the_segments_written_out(make_model, close):
    model, ids = make_model("rmt"), text(2, 10)
    weight = torch.randn(2, 10, 23, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad((model(ids).logits * weight).sum(), list(model.parameters()))
    expected = torch.autograd.grad((written_out(model, ids)[0] * weight).sum(), list(model.parameters()))
    close(found, expected, 1e-9)


def test_rows_at_different_places_of_their_segments(make_model, close):
    model, ids = make_model("rmt"), text(3, 14)
    mask = torch.ones(3, 14, dtype=torch.long)
    mask[1, :3] = 0
    mask[2, 1:] = 0
    with torch.no_grad():
        state, outputs = None, []
        for start, stop in ((0, 5), (5, 6), (6, 7), (7, 14)):  # rows end segments in calls of one token, too
            out = model(ids[:, start:stop], attention_mask=mask[:, start:stop], cache=state, use_cache=True)
            state = out.cache
            outputs.append(out.logits)
        logits = torch.cat(outputs, 1)
        for row in range(3):
            expected, memory = written_out(model, ids[row : row + 1, mask[row].bool()])
            close(logits[row, mask[row].bool()], expected[0], 1e-11)
            close(state.segment.memory[row], memory[0], 1e-11)
    assert state.segment.offset.tolist() == [2, 3, 1]


def test_the_first_memory_is_on_the_scale_of_later_ones(make_model):
    torch.manual_seed(0)
    model = make_model("rmt", torch.float32, fresh=True, hidden_size=64, num_memory_tokens=16)
    assert isinstance(model.model.recurrence, SegmentRecurrence)
    memory = model(text(1, 4)).cache.segment.memory
    assert 0.9 < model.model.recurrence.memory.square().mean().sqrt() / memory.square().mean().sqrt() < 1.1
