"""Write gates: what is collected, and that a price on them closes some and not others."""

import pytest
import torch

from titans import NeuralMemory
from titans.training.objective import WriteGates


def test_spread_of_all_gates(make_model):
    """The mean over the root mean square of each head, on average over heads and layers."""
    model, ids = make_model("mac").eval(), torch.arange(14).reshape(2, 7)
    layers = [layer for layer in model.modules() if isinstance(layer, NeuralMemory)]
    seen = {layer: [] for layer in layers}
    with torch.no_grad(), WriteGates(model) as gates:
        assert float(gates.spread()) == 0
        for layer in layers:
            layer.gates.register_forward_hook(
                lambda module, x, y, layer=layer: seen[layer].append(y[..., : layer.num_heads].flatten(0, 1).sigmoid())
            )
        model(ids)
        found = float(gates.spread())
    opened = torch.stack([torch.cat(gates) for gates in seen.values()]).double()  # [layers, B T, H]
    expected = (opened.mean(1) / opened.square().mean(1).sqrt()).mean()
    assert found == pytest.approx(float(expected), rel=1e-6)
    model(ids)
    assert float(gates.spread()) == found  # what is read outside the block does not count


@pytest.mark.parametrize(("gates", "spread"), [([0.3] * 8, 1.0), ([0.9] * 2 + [0.0] * 6, 0.5), ([1e-30] * 8, 1.0)])
def test_known_spreads(make_model, gates, spread):
    """1 where all gates are alike, however small; the root of the share that is open otherwise."""
    model = make_model("lmm").eval()
    layers = [layer for layer in model.modules() if isinstance(layer, NeuralMemory)]
    logits = torch.tensor(gates, dtype=torch.float64).clamp(min=1e-40).logit().float()
    with WriteGates(model) as collected:
        for layer in layers:
            width = layer.gates.out_features
            layer.gates.forward = lambda x, width=width: logits[:, None].expand(-1, width)[None]
            layer.gates(torch.zeros(1, len(gates), layer.hidden_size))
        assert float(collected.spread()) == pytest.approx(spread, rel=1e-5)


def test_a_price_parts_the_gates(make_model):
    """Under the price alone a few gates stay open and the others close, without all becoming small."""
    model, ids = make_model("lmm").train(), torch.arange(14).reshape(2, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    spreads = []
    for _ in range(40):
        with WriteGates(model) as gates:
            model(ids)
        cost = gates.spread()
        spreads.append(float(cost.detach()))
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
    assert spreads[-1] < 0.7 * spreads[0]


def test_models_without_memory_have_none(make_model):
    model = make_model("swa").eval()
    with WriteGates(model) as gates:
        model(torch.arange(5)[None])
        assert float(gates.spread()) == 0
