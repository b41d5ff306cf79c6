"""The token mixers under test, and the memory layer written out literally."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from titans import NeuralMemory
from titans.layers import ttt
from titans.layers.attention import Attention, PaperAttention
from titans.layers.delta_net import DeltaNet
from titans.layers.full_attention import FullAttention
from titans.layers.gated_delta_net import GatedDeltaNet
from titans.layers.gated_linear_attention import GatedLinearAttention
from titans.layers.mamba import Mamba
from titans.layers.mamba2 import Mamba2
from titans.layers.memory_as_context import MemoryAsContext
from titans.layers.memory_as_gate import MemoryAsGate
from titans.layers.retention import Retention
from titans.layers.sliding_window_attention import SlidingWindowAttention
from titans.models.configuration import PAPER_MEMORY
from titans.ops import associative_memory, initial_state

DIM, HEADS = 16, 2
TOKEN = {"rule": "token", "depth": 1}
CHUNK = {"rule": "chunk"}
PAPER = dict(PAPER_MEMORY)


def memory(**options):
    return NeuralMemory(DIM, HEADS, **{"chunk_size": 3, "expansion": 1, **options})


def attention(window=4, persistent_tokens=2, paper_form=False):
    return SlidingWindowAttention(DIM, HEADS, window, persistent_tokens, paper_form=paper_form)


def context(retrieved=None, persistent_tokens=2, paper_form=False, **options):
    kind = PaperAttention if paper_form else Attention
    return MemoryAsContext(kind(DIM, HEADS, persistent_tokens), memory(**options), 5, retrieved, paper_form)


MIXERS = {
    "memory": lambda: memory(persistent_tokens=2),
    "memory-three": lambda: memory(depth=3, activation="silu", expansion=2),
    "memory-learning": lambda: memory(hidden_lr=0.7, residual=True, expansion=2),
    "memory-gate-floor": lambda: memory(gate_floor=0.5, channelwise_forgetting=True),
    "memory-chunk": lambda: memory(**CHUNK, persistent_tokens=2),
    "memory-matrix": lambda: memory(**CHUNK, depth=1),
    "memory-four": lambda: memory(**CHUNK, depth=4, activation="relu", expansion=2),
    "memory-plain": lambda: memory(**CHUNK, residual=False, norm=False, momentum=False, use_short_conv=False),
    "memory-no-forgetting": lambda: memory(**CHUNK, forgetting=False),
    "memory-channelwise": lambda: memory(**CHUNK, channelwise_forgetting=True, expansion=2),
    "memory-chunk-gates": lambda: memory(**CHUNK, gates="chunk", persistent_tokens=2),
    "memory-paper": lambda: memory(**PAPER, theta_max=0.1),
    "memory-token": lambda: memory(**TOKEN, persistent_tokens=1),
    "memory-token-gate-floor": lambda: memory(**TOKEN, gate_floor=0.5),
    "memory-token-channelwise": lambda: memory(**TOKEN, channelwise_forgetting=True, residual=True),
    "attention": attention,
    "attention-paper": lambda: attention(paper_form=True),
    "attention-one": lambda: attention(window=1, persistent_tokens=0),
    "attention-full": lambda: FullAttention(DIM, HEADS),
    "ttt-linear": lambda: memory(**ttt.LINEAR),
    "ttt-mlp": lambda: memory(**ttt.MLP),
    "gate": lambda: MemoryAsGate(attention(), memory()),
    "gate-chunk": lambda: MemoryAsGate(attention(), memory(**CHUNK)),
    "gate-paper": lambda: MemoryAsGate(attention(paper_form=True), memory(**PAPER, theta_max=0.1), paper_form=True),
    "gate-token": lambda: MemoryAsGate(attention(persistent_tokens=0), memory(**TOKEN)),
    "context": context,
    "context-chunk": lambda: context(**CHUNK),
    "context-learning": lambda: context(hidden_lr=1.0),
    "context-paper": lambda: context(paper_form=True, **PAPER, theta_max=0.1),
    "context-paper-retrieved": lambda: context(retrieved=3, paper_form=True, **PAPER, theta_max=0.1),
    "context-retrieved": lambda: context(retrieved=3),
    "context-bare": lambda: context(persistent_tokens=0, use_short_conv=False, momentum=False, forgetting=False),
    "context-token": lambda: context(**TOKEN),
    "context-gate-floor": lambda: context(gate_floor=0.5),
    "context-chunk-gates": lambda: context(**CHUNK, gates="chunk", channelwise_forgetting=True),
    "retention": lambda: Retention(DIM, HEADS, chunk_size=5),
    "gated-linear-attention": lambda: GatedLinearAttention(DIM, HEADS, rank=3, chunk_size=5),
    "delta-net": lambda: DeltaNet(DIM, HEADS, chunk_size=5),
    "delta-net-bare": lambda: DeltaNet(DIM, HEADS, head_k_dim=3, head_v_dim=5, use_short_conv=False),
    "gated-delta-net": lambda: GatedDeltaNet(DIM, HEADS, chunk_size=5),
    "mamba": lambda: Mamba(DIM, state_size=3, rank=2, chunk_size=5),
    "mamba2": lambda: Mamba2(DIM, HEADS, state_size=6, chunk_size=5),
}


@pytest.fixture(scope="session", params=MIXERS)
def mixer(request, scrambled):
    """Every mixer, with random float64 parameters."""
    return scrambled(MIXERS[request.param]())


@pytest.fixture(scope="session", params=MIXERS)
def fresh_mixer(request):
    """Every mixer, as initialised, in float32."""
    torch.manual_seed(0)
    mixer = MIXERS[request.param]().eval()
    for layer in mixer.modules():
        if isinstance(layer, NeuralMemory) and layer.config.rule == "chunk":  # as with the default chunk size
            layer.config = dataclasses.replace(layer.config, theta_max=1 / 128)
    return mixer


@pytest.fixture(scope="session")
def make_mixer(scrambled):
    """Make one mixer by name, with random float64 parameters."""
    return lambda name: scrambled(MIXERS[name]())


class LiteralMemory:
    """A `NeuralMemory` as docs/semantics.md reads, for whole streams without padding; runs on the reference op."""

    def __init__(self, layer):
        self.layer = layer
        self.weights = initial_state(list(layer.initial_weights)).weights

    def project(self, which, x, projection=None):
        """SiLU(conv(x W)) split into heads, `[B, T, H, d]`; queries, keys and values are side by side."""
        projection = self.layer.qkv_proj if projection is None else projection
        here = slice(which * x.shape[-1], (which + 1) * x.shape[-1])
        x = x @ projection.linear.weight[here].T
        if projection.conv_weight is not None:
            taps, y = projection.conv_weight[:, here], torch.zeros_like(x)
            for t in range(x.shape[1]):
                for back in range(min(4, t + 1)):
                    y[:, t] += taps[3 - back] * x[:, t - back]
            x = y
        return F.silu(x).view(*x.shape[:2], self.layer.num_heads, -1)

    def queries(self, x, projection=None):
        q = self.project(0, x, projection)
        return q / q.norm(dim=-1, keepdim=True)

    def gates(self, x):
        """Theta, alpha, eta."""
        layer, heads = self.layer, self.layer.num_heads
        x = x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=1)
        logits = x @ layer.gates.weight.T + layer.gates.bias
        if layer.config.gates == "chunk":
            size = layer.options["chunk_size"]
            logits = torch.stack([logits[:, t // size * size] for t in range(x.shape[1])], 1)
        logits = list(logits.unbind(-1))
        step = torch.stack([logits.pop(0) for _ in range(heads)], -1).sigmoid()
        eta = 0 * step
        if layer.gate_sizes[1]:
            largest = 1 - layer.config.max_step * (
                1 if layer.options["rule"] == "token" or layer.options["chunk_size"] == 1 else 2
            )
            if layer.config.free_gates:
                largest = 1
            eta = largest * torch.stack([logits.pop(0) for _ in range(heads)], -1).sigmoid()
        alpha = 0 * step
        if logits:
            alpha = torch.sigmoid(torch.stack(logits, -1) - 8).view(*x.shape[:2], heads, -1)
            alpha = alpha.squeeze(-1)
        closed = (step < layer.config.gate_floor) & (not layer.training)
        alpha = torch.where(closed if alpha.dim() == 3 else closed.unsqueeze(-1), 0.0, alpha)
        free = 1 if layer.config.free_gates else 1 - eta
        return layer.config.max_step * free * step.masked_fill(closed, 0.0), alpha, eta

    def features(self, x):
        """What the fixed layers make of keys or queries `[B, T, H, d]`."""
        for w in self.layer.feature_weights:
            x = self.between(torch.einsum("bthi,hij->bthj", x, w))
        return x

    def between(self, z):
        """From a layer's product to the next one's input."""
        a = getattr(F, self.layer.config.activation)(z)
        if not self.layer.network_options["feature_norm"]:
            return a
        a = a - a.mean(-1, keepdim=True)
        return a / (a.square().sum(-1, keepdim=True) + 1e-6 * a.shape[-1]).sqrt()

    def network_options(self):
        return {**self.layer.network_options, "norm_weight": self.layer.memory_norm}

    def write(self, x):
        """Outputs `[B, T, D]` and the final state of the op, persistent tokens first."""
        first = 0
        if self.layer.persistent is not None:
            first = len(self.layer.persistent)
            x = torch.cat([self.layer.persistent.expand(len(x), -1, -1), x], 1)
        k, v = self.project(1, x), self.project(2, x)
        v = v / (v.square().mean(-1, keepdim=True).sqrt() / 10).clamp(min=1)
        y, state = associative_memory(
            self.features(self.queries(x)),
            self.features(k / k.norm(dim=-1, keepdim=True)),
            v,
            *self.gates(x),
            initial_state([w.expand(len(x), -1, -1, -1) for w in self.weights]),
            backend="naive",
            **self.layer.options,
            **self.network_options(),
        )
        return self.read_out(y, x)[:, first:], state

    def recall(self, q, weights):
        """Read only: the network applied to the queries, `[B, T, H, d]`."""
        q = z = self.features(q).transpose(1, 2)
        for i, w in enumerate(weights):
            z = (self.between(z) if i else z) @ w
        if self.layer.memory_norm is not None:
            z = F.layer_norm(z, z.shape[-1:], eps=1e-6) * self.layer.memory_norm.unsqueeze(1)
        return (q + z if self.layer.network_options["residual"] else z).transpose(1, 2)

    def read_out(self, y, x):
        y = y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.layer.o_norm.weight
        y = y.flatten(2) * F.silu(x @ self.layer.g_proj.weight.T)
        return y @ self.layer.o_proj.weight.T


@pytest.fixture(scope="session")
def literal_memory():
    return LiteralMemory


class LiteralAttention:
    """An `Attention` with one query at a time."""

    def __init__(self, layer):
        self.layer = layer
        self.num_heads = layer.num_heads

    def rotate(self, x, position):
        """Rotary position of `x` `[B, H, d]`: pairs in the first half of the channels, the rest unchanged."""
        d = x.shape[-1]
        pairs = d // 4
        y = x.clone()
        for i in range(pairs):
            angle = torch.tensor(position * self.layer.rope_theta ** (-i / pairs), dtype=x.dtype)
            a, b = x[..., i], x[..., i + pairs]
            y[..., i] = a * angle.cos() - b * angle.sin()
            y[..., i + pairs] = b * angle.cos() + a * angle.sin()
        return y

    def split(self, x):
        return x.view(len(x), self.num_heads, -1)

    @property
    def in_paper_form(self):
        return isinstance(self.layer, PaperAttention)

    def made_of(self, token, before):
        """Queries, keys and values `[B, H, d]` of a token `[B, D]`, after those before it in its stream."""
        layer = self.layer
        if not self.in_paper_form:
            return tuple(self.split(y(token)) for y in (layer.q_proj, layer.k_proj, layer.v_proj))
        y = layer.qkv_proj.linear(token)
        if before is not None:
            weight = layer.qkv_proj.conv_weight
            y = weight[3] * y + sum(weight[2 - i] * layer.qkv_proj.linear(x) for i, x in enumerate(before[::-1][:3]))
        q, k, v = (self.split(part) for part in F.silu(y).chunk(3, -1))
        return q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v

    def output(self, y, x):
        """From what was attended to `[B, H, d]` to the output, gated by the token x `[B, D]`."""
        layer = self.layer
        if self.in_paper_form:
            y = y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * layer.o_norm.weight
            y = y * F.silu(self.split(layer.g_proj(x)))
        return layer.o_proj(y.flatten(1))

    def __call__(self, stream, t, position, seen):
        """Attend from token t of the stream to persistent tokens and to `seen`.

        The stream is `[B, T, D]`; `seen` a list of (place in it or token `[B, D]`, position or None).
        """
        layer, x = self.layer, stream[:, t]
        q = self.rotate(self.made_of(x, list(stream[:, :t].unbind(1)))[0], position)
        keys, values = [], []
        persistent = [] if layer.persistent is None else layer.persistent
        for token, place in [(p.expand(len(x), -1), None) for p in persistent] + seen:
            if isinstance(token, int):
                _, k, v = self.made_of(stream[:, token], list(stream[:, :token].unbind(1)))
            else:
                _, k, v = self.made_of(token, None)
            if place is None:
                k = k.clone()
                k[..., : k.shape[-1] // 4 * 2] = 0
            else:
                k = self.rotate(k, place)
            keys.append(k)
            values.append(v)
        k, v = torch.stack(keys, 2), torch.stack(values, 2)  # [B, H, M, d]
        scores = (q.unsqueeze(2) * k).sum(-1) * q.shape[-1] ** (0.5 if self.in_paper_form else -0.5)
        return self.output((scores.softmax(-1).unsqueeze(-1) * v).sum(2), x)


@pytest.fixture(scope="session")
def literal_attention():
    return LiteralAttention
