"""Write gates: what is collected, and that a price on them closes them."""

import pytest
import torch

from titans import NeuralMemory
from titans.models.write_gates import WriteGates


def test_mean_of_all_gates(make_model):
    model, ids = make_model("mac").eval(), torch.arange(14).reshape(2, 7)
    seen = []

    def collect(layer, inputs, logits):
        seen.append(logits[..., : layer.heads])

    with torch.no_grad(), WriteGates(model) as gates:
        assert float(gates.take_mean()) == 0
        layers = [layer for layer in model.modules() if isinstance(layer, NeuralMemory)]
        for layer in layers:
            layer.gates.register_forward_hook(lambda module, x, y, layer=layer: collect(layer, x, y))
        model(ids)
        expected = torch.cat([x.flatten() for x in seen]).sigmoid().mean()
        assert float(gates.take_mean()) == pytest.approx(float(expected), rel=1e-6)
        assert float(gates.take_mean()) == 0
    assert 0 < float(expected) < 1
    model(ids)
    assert float(gates.take_mean()) == 0  # outside the block


def test_a_price_closes_the_gates(make_model):
    model, ids = make_model("lmm").train(), torch.arange(14).reshape(2, 7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with WriteGates(model) as gates:
        means = []
        for _ in range(20):
            model(ids)
            cost = gates.take_mean()
            means.append(float(cost.detach()))
            optimizer.zero_grad()
            cost.backward()
            optimizer.step()
    assert means[-1] < 0.5 * means[0]


def test_models_without_memory_have_none(make_model):
    model = make_model("swa").eval()
    with WriteGates(model) as gates:
        model(torch.arange(5)[None])
        assert float(gates.take_mean()) == 0
