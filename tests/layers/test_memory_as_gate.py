"""MAG against its definition: attention and memory on the same input, one gating the other."""

import pytest
import torch


@pytest.mark.parametrize("name", ["gate", "gate-token", "gate-paper"])
def test_equals_mag_written_out(make_mixer, literal_memory, literal_attention, close, name):
    layer = make_mixer(name)
    x = torch.randn(2, 11, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inner = layer.attention_branch.attention
    attention, memory = literal_attention(inner), literal_memory(layer.memory)

    def norm(x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    with torch.no_grad():
        y = [attention(x, t, t, [(j, j) for j in range(max(0, t - 3), t + 1)]) for t in range(11)]
        # The memory reads the attention's persistent tokens first.
        first = 0 if inner.persistent is None else len(inner.persistent)
        before = x if first == 0 else torch.cat([inner.persistent.expand(2, -1, -1), x], 1)
        m = memory.write(before)[0][:, first:]
        passed = layer.gate.scale * norm(torch.stack(y, 1)) + (0 if name == "gate-paper" else layer.gate.shift)
        expected = passed * (norm(m) * layer.gate.memory_norm.weight).sigmoid()
        assert expected.square().mean() > 1e-3  # else a layer that answers nothing would pass
        close(layer(x)[0], expected, 1e-10)
