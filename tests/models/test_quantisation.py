"""Quantised to int8, by torchao and by torch itself, every model runs, with numbers near its own."""

import copy

import pytest
import torch
from torch import nn

from titans import load_state, save_state

pytestmark = [  # PyTorch's own words about its own quantisation
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning"),
]


def by_torchao(model):
    quantization = pytest.importorskip("torchao.quantization")
    model = copy.deepcopy(model)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model


def by_torch(model):
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


class Packed(nn.Module):
    """As bitsandbytes and GPTQ keep a linear layer: whole numbers, and no weight that is a matrix."""

    def __init__(self, linear):
        super().__init__()
        self.scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127  # of each row
        self.qweight = nn.Parameter((linear.weight.detach() / self.scale).round().to(torch.int8), requires_grad=False)
        self.bias = linear.bias

    def forward(self, x):
        return nn.functional.linear(x, self.qweight.to(x.dtype) * self.scale, self.bias)


def by_packing(model):
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, Packed(child))
    return model


@pytest.mark.parametrize("quantised", [by_torchao, by_torch, by_packing])
def test_int8_is_near_the_model(make_model, variant, quantised, tmp_path, same):
    model = make_model(variant, torch.float32, fresh=True, initializer_range=0.1, hidden_size=32)
    small = quantised(model)
    assert not any(type(m) is nn.Linear and type(m.weight.data) is torch.Tensor for m in small.modules())
    ids = torch.randint(1, 23, (2, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, found = model(ids), small(ids[:, :7])
        logits = torch.cat([found.logits, small(ids[:, 7:], cache=found.cache).logits], 1)
        assert (logits - expected.logits).norm() < 0.2 * expected.logits.norm()
    assert [x.dtype for x in found.cache.tensors()] == [x.dtype for x in expected.cache.tensors()]
    assert small.generate(ids, max_new_tokens=2, do_sample=False).shape == (2, 13)
    save_state(found.cache, tmp_path / "state.safetensors")
    same(load_state(tmp_path / "state.safetensors", small).layers, found.cache.layers)
