"""TTT-Linear and TTT-MLP written out, and that the memory with their settings is them."""

import math

import pytest
import torch
import torch.nn.functional as F

from titans import NeuralMemory, TitansConfig
from titans.layers import ttt
from titans.layers.registry import MIXERS

DIM, HEADS, CHUNK, TOKENS = 16, 2, 5, 13


def tokens():
    return torch.randn(2, TOKENS, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def convolve(x, taps):
    y = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for back in range(min(4, t + 1)):
            y[:, t] += taps[3 - back] * x[:, t - back]
    return y


def layer_norm(z):
    return (z - z.mean(-1, keepdim=True)) / (z.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt()


def gelu(z):
    return z * (1 + torch.erf(z / math.sqrt(2))) / 2


def inner(x, weights, scale):
    """x + LN(x W), or x + LN(GELU(x W1) W2)."""
    z = x @ weights[0]
    return x + layer_norm(z if len(weights) == 1 else gelu(z) @ weights[1]) * scale


def written_out(layer, x):
    """One stream and one head at a time; one step of gradient descent for each token of a mini-batch."""
    q, k, v = F.silu(convolve(x @ layer.qkv_proj.linear.weight.T, layer.qkv_proj.conv_weight)).chunk(3, -1)
    gate_input = x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=1)
    rates = layer.config.max_step * (gate_input @ layer.gates.weight.T + layer.gates.bias).sigmoid()
    rows = []
    for b in range(len(x)):
        heads = []
        for h in range(HEADS):
            qh, kh, vh = (y[b].chunk(HEADS, -1)[h] for y in (q, k, v))
            qh, kh = qh / qh.norm(dim=-1, keepdim=True), kh / kh.norm(dim=-1, keepdim=True)
            w, reads = [p[h] for p in layer.initial_weights], []
            for t in range(TOKENS):
                if t % CHUNK == 0:
                    anchor = w
                at = [p.detach().requires_grad_() for p in anchor]
                loss = (inner(kh[t], at, layer.memory_norm[h]) - vh[t]).square().sum()
                w = [p - rates[b, t, h] * g for p, g in zip(w, torch.autograd.grad(loss, at), strict=True)]
                reads.append(inner(qh[t], w, layer.memory_norm[h]))
            y = torch.stack(reads)
            heads.append(y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * layer.o_norm.weight)
        rows.append(torch.cat(heads, -1))
    return (torch.stack(rows) * F.silu(x @ layer.g_proj.weight.T)) @ layer.o_proj.weight.T


@pytest.mark.parametrize(("name", "shapes"), [("ttt_linear", [(2, 8, 8)]), ("ttt_mlp", [(2, 8, 32), (2, 32, 8)])])
def test_equals_gradient_descent_written_out(scrambled, close, name, shapes):
    """As built from a configuration whose own choices for the memory are all others."""
    config = TitansConfig(
        hidden_size=DIM, num_attention_heads=HEADS, memory={
            "chunk_size": CHUNK, "depth": 3, "expansion": 2, "activation": "relu", "residual": False, "norm": False,
            "rule": "chunk", "gates": "chunk", "channelwise_forgetting": True, "limit_steps": False, "theta_max": 0.3,
        },
    )  # fmt: skip
    layer = scrambled(MIXERS[name](config))
    assert [tuple(w.shape) for w in layer.initial_weights] == shapes
    assert layer.persistent is None
    expected = written_out(layer, tokens()).detach()
    with torch.no_grad():
        y, state = layer(tokens())
    close(y, expected, 1e-11)
    assert all((s == 0).all() or not torch.equal(w, a) for s, w, a in zip(
        state.memory.surprise, state.memory.weights, state.memory.anchor, strict=True))  # fmt: skip


def test_without_momentum_the_surprise_is_the_last_gradient(scrambled, close):
    """Nothing of earlier tokens is in it, and nothing is forgotten: the weights differ by it alone."""
    layer = scrambled(NeuralMemory(DIM, HEADS, chunk_size=CHUNK, **ttt.LINEAR))
    with torch.no_grad():
        _, before = layer(tokens()[:, :-1])
        _, after = layer(tokens()[:, -1:], before)
    close(after.memory.weights[0], before.memory.weights[0] + after.memory.surprise[0], 1e-12)
