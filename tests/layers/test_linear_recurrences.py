"""The mixers over the linear recurrences: their papers' equations written out, and transformers' Mamba2."""

import math

import pytest
import torch
import torch.nn.functional as F

from titans.layers.delta_net import DeltaNet
from titans.layers.gated_delta_net import GatedDeltaNet
from titans.layers.gated_linear_attention import GatedLinearAttention
from titans.layers.linear_recurrence import LinearRecurrence
from titans.layers.mamba import Mamba
from titans.layers.mamba2 import Mamba2
from titans.layers.retention import Retention
from titans.layers.time_step import TimeStep

DIM, HEADS, TOKENS = 16, 2, 12


def tokens(dim=DIM, count=TOKENS, dtype=torch.float64):
    return torch.randn(2, count, dim, dtype=dtype, generator=torch.Generator().manual_seed(0))


def convolve(x, layer):
    """The causal convolution, tap by tap."""
    y = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for back in range(min(4, t + 1)):
            y[:, t] += layer.weight[3 - back] * x[:, t - back]
    return y if layer.bias is None else y + layer.bias


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def rms(y, weight):
    return y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def softplus(x):
    return (1 + x.exp()).log()


def literal(layer, x):
    """The equations of the class's docstring, one token and one head at a time."""
    z = x @ layer.qkv_proj.weight.T
    if layer.conv1d is not None:
        z = convolve(z, layer.conv1d)
    if isinstance(layer, DeltaNet | GatedDeltaNet):
        z = F.silu(z)
    heads = []
    q, k, v = z.split(layer.widths, -1)
    for h in range(layer.num_heads):
        qh, kh, vh = (y.chunk(layer.num_heads, -1)[h] for y in (q, k, v))
        keys = kh.shape[-1]
        decay = torch.ones(2, TOKENS, keys, dtype=x.dtype)
        beta = None
        match layer:
            case Retention():
                decay = decay * (1 - 2.0 ** (-5 - h))
            case GatedLinearAttention():
                low, high = layer.gk_proj
                logits = x @ low.weight.T @ high.weight.T + high.bias
                decay = logits.sigmoid().chunk(layer.num_heads, -1)[h] ** (1 / 16)
            case DeltaNet():
                beta = (x @ layer.b_proj.weight[h]).sigmoid()
            case GatedDeltaNet():
                beta = (x @ layer.b_proj.weight[h]).sigmoid()
                dt = softplus(x @ layer.time_step.proj.weight[h] + layer.time_step.dt_bias[h])
                decay = decay * (-layer.time_step.A_log[h].exp() * dt).exp().unsqueeze(-1)
        if beta is None:
            qh = qh / math.sqrt(keys)
        else:
            qh, kh = unit(qh), unit(kh)
        s, reads = torch.zeros(2, keys, vh.shape[-1], dtype=x.dtype), []
        for t in range(TOKENS):
            s = decay[:, t].unsqueeze(-1) * s
            write = vh[:, t]
            if beta is not None:
                write = beta[:, t, None] * (write - torch.einsum("bk,bkv->bv", kh[:, t], s))
            s = s + torch.einsum("bk,bv->bkv", kh[:, t], write)
            reads.append(torch.einsum("bk,bkv->bv", qh[:, t], s))
        y = torch.stack(reads, 1)
        if isinstance(layer, Retention):
            y = y - y.mean(-1, keepdim=True)
        heads.append(rms(y, layer.o_norm.weight))
    y = torch.cat(heads, -1)
    if layer.g_proj is not None:
        y = y * F.silu(x @ layer.g_proj.weight.T)
    return y @ layer.o_proj.weight.T


@pytest.mark.parametrize(
    "name", ["retention", "gated-linear-attention", "delta-net", "delta-net-bare", "gated-delta-net"]
)
def test_equals_its_equations(make_mixer, close, name):
    mixer = make_mixer(name)
    with torch.no_grad():
        close(mixer(tokens())[0], literal(mixer, tokens()), 1e-11)


def test_mamba2_equals_its_equations(make_mixer, close):
    mixer, x = make_mixer("mamba2"), tokens()
    with torch.no_grad():
        z, u, b, c = (x @ mixer.in_proj.weight.T).split([32, 32, 6, 6], -1)
        u, b, c = F.silu(convolve(torch.cat([u, b, c], -1), mixer.conv1d)).split([32, 6, 6], -1)
        dt = softplus(x @ mixer.time_step.proj.weight.T + mixer.time_step.dt_bias)
        reads = []
        for h, uh in enumerate(u.chunk(2, -1)):
            s, y = torch.zeros(2, 6, 16, dtype=torch.float64), []
            for t in range(TOKENS):
                step = dt[:, t, h, None, None]
                s = (-mixer.time_step.A_log[h].exp() * step).exp() * s
                s = s + step * b[:, t].unsqueeze(2) * uh[:, t].unsqueeze(1)
                y.append((c[:, t].unsqueeze(2) * s).sum(1) + mixer.D[h] * uh[:, t])
            reads.append(torch.stack(y, 1))
        expected = rms(torch.cat(reads, -1) * F.silu(z), mixer.norm.weight) @ mixer.out_proj.weight.T
        close(mixer(x)[0], expected, 1e-11)


@pytest.mark.parametrize("count", [1, 7, 40])
def test_mamba2_equals_transformers(scrambled, close, count):
    """With the same weights, on the path in PyTorch that it takes without its kernels."""
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer

    config = Mamba2Config(hidden_size=16, num_heads=4, head_dim=8, expand=2, state_size=6, n_groups=1, chunk_size=16,
                          layer_norm_epsilon=1e-6, num_hidden_layers=1, vocab_size=8)  # fmt: skip
    theirs = Mamba2Mixer(config, 0).eval()
    ours = scrambled(Mamba2(16, 4, state_size=6, chunk_size=16), dtype=torch.float32)
    with torch.no_grad():
        theirs.in_proj.weight.copy_(torch.cat([ours.in_proj.weight, ours.time_step.proj.weight]))
        theirs.conv1d.weight.copy_(ours.conv1d.weight.T.unsqueeze(1))
        theirs.conv1d.bias.copy_(ours.conv1d.bias)
        theirs.dt_bias.copy_(ours.time_step.dt_bias)
        theirs.A_log.copy_(ours.time_step.A_log)
        theirs.D.copy_(ours.D)
        theirs.norm.weight.copy_(ours.norm.weight)
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        x = tokens(count=count, dtype=torch.float32)
        close(ours(x)[0], theirs(x), 1e-5)


def test_mamba_equals_its_equations(make_mixer, close):
    mixer, x = make_mixer("mamba"), tokens()
    with torch.no_grad():
        u, z = (x @ mixer.in_proj.weight.T).split([32, 32], -1)
        u = F.silu(convolve(u, mixer.conv1d))
        r, b, c = (u @ mixer.x_proj.weight.T).split([2, 3, 3], -1)
        dt = softplus(r @ mixer.dt_weight.T + mixer.dt_bias)
        y = torch.zeros_like(u)
        for channel in range(32):
            for n in range(3):
                rate, h = (n + 1) * mixer.A_log[channel, n].exp(), torch.zeros(2, dtype=torch.float64)
                for t in range(TOKENS):
                    here = dt[:, t, channel]
                    h = (-rate * here).exp() * h + here * u[:, t, channel] * b[:, t, n]
                    y[:, t, channel] += c[:, t, n] * h
        expected = ((y + mixer.D * u) * F.silu(z)) @ mixer.out_proj.weight.T
        close(mixer(x)[0], expected, 1e-11)


@pytest.mark.parametrize("count", [1, 7, 40])
def test_mamba_equals_transformers(scrambled, close, count):
    """With the same weights, on the path in PyTorch that it takes without its kernels."""
    from transformers.models.mamba.modeling_mamba import MambaConfig, MambaMixer

    config = MambaConfig(hidden_size=16, state_size=6, expand=2, time_step_rank=3, num_hidden_layers=1, vocab_size=8)
    theirs = MambaMixer(config, 0).eval()
    ours = scrambled(Mamba(16, state_size=6, rank=3), dtype=torch.float32)
    with torch.no_grad():
        theirs.in_proj.weight.copy_(ours.in_proj.weight)
        theirs.conv1d.weight.copy_(ours.conv1d.weight.T.unsqueeze(1))
        theirs.conv1d.bias.copy_(ours.conv1d.bias)
        theirs.x_proj.weight.copy_(ours.x_proj.weight)
        theirs.dt_proj.weight.copy_(ours.dt_weight)
        theirs.dt_proj.bias.copy_(ours.dt_bias)
        theirs.A_log.copy_(torch.arange(1, 7).log() + ours.A_log)
        theirs.D.copy_(ours.D)
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        x = tokens(count=count, dtype=torch.float32)
        close(ours(x)[0], theirs(x), 1e-5)


def test_time_steps_start_as_published():
    """Decays between exp(-16 * 0.1) and exp(-0.001) at an input of 0."""
    torch.manual_seed(0)
    step, log_decay = TimeStep(4, 1000)(torch.zeros(1, 1, 4))
    assert 0.9e-3 < step.min() < 1.2e-3
    assert 0.08 < step.max() < 0.1
    rate = -log_decay / step
    assert 0.99 < rate.min() < 1.1
    assert 15 < rate.max() < 16.01


@pytest.mark.parametrize(
    "make", [Retention, GatedLinearAttention, DeltaNet, GatedDeltaNet, Mamba2, lambda dim, num_heads: Mamba(dim)]
)
def test_inputs_of_any_size_keep_the_memory_finite(make):
    torch.manual_seed(0)
    mixer, state = make(DIM, HEADS), None
    x = torch.randn(1, 300, DIM).sign() * torch.logspace(-38, 38, 300).view(1, 300, 1)
    with torch.no_grad():
        for part in (x, x.flip(1), x[:, -1:].expand(-1, 2000, -1)):
            y, state = mixer(part, state)
            assert y.isfinite().all()
            assert all(t.isfinite().all() for t in state.tensors())


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Retention(10, 3), "hidden_size=10 is not a multiple of num_heads=3"),
    (lambda: GatedLinearAttention(0, 1), "hidden_size=0 must be at least 1"),
    (lambda: GatedLinearAttention(8, 2, rank=0), "rank=0 must be at least 1"),
    (lambda: DeltaNet(8, 2, head_k_dim=0), "head_k_dim=0 must be at least 1"),
    (lambda: GatedDeltaNet(8, 0), "num_heads=0 must be at least 1"),
    (lambda: GatedDeltaNet(8, 2, chunk_size=0), "chunk_size=0 must be at least 1"),
    (lambda: Mamba(8, state_size=0), "state_size=0 must be at least 1"),
    (lambda: Mamba(0), "hidden_size=0 must be at least 1"),
    (lambda: Mamba2(8, 3), "expansion=2 times hidden_size=8 is not a multiple of num_heads=3"),
    (lambda: Mamba2(8, 2, state_size=0), "state_size=0 must be at least 1"),
])  # fmt: skip
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("make", "widths", "parameters"), [
    (Retention, [64, 64, 128], 8), (GatedLinearAttention, [32, 32, 64], 4), (DeltaNet, [64, 64, 64], 4),
    (GatedDeltaNet, [48, 48, 96], 6),
])  # fmt: skip
def test_published_proportions(make, widths, parameters):
    """Channels of queries, keys and values, and the weights of the projections in units of D^2."""
    mixer = make(64, 4)
    assert isinstance(mixer, LinearRecurrence)
    assert mixer.widths == widths
    large = [mixer.qkv_proj, mixer.o_proj, *([] if mixer.g_proj is None else [mixer.g_proj])]
    assert sum(p.weight.numel() for p in large) == parameters * 64**2
