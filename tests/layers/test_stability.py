"""Default memories on hostile streams stay finite and learn repeated data (docs/semantics.md, section 3)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from titans import NeuralMemory
from titans.ops import AssociativeMemoryState, associative_memory

DIM = 16
SLOW = ("three-layers", "depth-1", "depth-3", "depth-4", "published-chunk", "plain")
LAYERS = {
    "default": {},
    "three-layers": {"depth": 3},
    "learning": {"hidden_lr": 1.0, "forgetting": False},  # which would empty the layers that make the features
    "depth-1": {"rule": "chunk", "depth": 1},
    "depth-2": {"rule": "chunk"},
    "depth-3": {"rule": "chunk", "depth": 3},
    "depth-4": {"rule": "chunk", "depth": 4},
    "published-chunk": {"rule": "chunk", "chunk_size": 16},
    "plain": {"rule": "chunk", "norm": False, "residual": False},
    "token": {"depth": 1},
}
layers = pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)


def make_layer(options, seed=0):
    torch.manual_seed(seed)
    return NeuralMemory(DIM, 2, **options)


def hostile_streams(count):
    """One kind of stream in each row, `[B, count, DIM]`."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, DIM, generator=generator)

    def repeated(period):
        return x[:period].repeat(-(-count // period), 1)[:count]

    outlier = x.clone()
    outlier[count // 2] *= 1e6
    alternating = torch.where(torch.arange(count).unsqueeze(1) % 2 == 0, x[0], -x[0])
    silence = x.clone()
    silence[count // 4 : count // 2] = 0
    return torch.stack(
        [repeated(1), repeated(4), repeated(6), repeated(8), repeated(12), repeated(64), 1e3 * x, 1e30 * x, 1e-6 * x,
         outlier, 2 + 0.1 * x, alternating, silence, (1e3 * x).sign() * 1e4]
    )  # fmt: skip


@pytest.mark.parametrize("options", [
    pytest.param(options, id=name, marks=[pytest.mark.slow] if name in SLOW else []) for name, options in LAYERS.items()
])  # fmt: skip
def test_training_stays_finite(options):
    """4,096 tokens, forward and backward."""
    layer = make_layer(options)
    x = hostile_streams(4096).requires_grad_()
    y, state = layer(x)
    assert y.isfinite().all(2).all(1).tolist() == [True] * len(x)
    assert all(t.isfinite().all() for t in state.tensors())
    y.square().mean().backward()
    assert x.grad.isfinite().all()
    for name, p in layer.named_parameters():
        assert p.grad.isfinite().all(), name


def repeated_stream_losses(literal_memory, layer, pattern, lengths):
    """Mean inner loss over the pattern `[B, P, DIM]` before it is read, and after each of the lengths. `[1 + n, B]`."""
    literal = literal_memory(layer)
    rows, period = len(pattern), pattern.shape[1]
    # The convolution makes keys and values periodic after the first three tokens.
    start = torch.cat([pattern[:, [-3 % period, -2 % period, -1 % period]], pattern], 1)
    k, v = (literal.project(i, start)[:, 3:].transpose(1, 2) for i in (1, 2))
    k = k / k.norm(dim=-1, keepdim=True)
    v = v / (v.square().mean(-1, keepdim=True).sqrt() / 10).clamp(min=1)

    def loss(weights):
        found = literal.recall(k.transpose(1, 2), weights).transpose(1, 2)
        return (found - v).square().sum(-1).mean((1, 2))

    state = layer.initial_state(rows)
    losses = [loss(state.memory.weights)]
    for length in lengths:
        _, state = layer(pattern.repeat(1, length // period, 1), state)
        losses.append(loss(state.memory.weights))
    return torch.stack(losses)


@layers
@pytest.mark.parametrize("scale", [1, 1e3])
@pytest.mark.parametrize("period", [1, 4, 8])
def test_inner_loss_falls_on_repeated_data(literal_memory, options, period, scale):
    if options.get("hidden_lr") and scale > 1:
        pytest.skip("layers that learn overshoot at values ten times their size before they fit them")
    layer = make_layer(options)
    pattern = scale * torch.randn(6, period, DIM, generator=torch.Generator().manual_seed(2))
    if layer.memory_norm is not None:
        torch.nn.init.ones_(layer.memory_norm)  # as training may make it: a new one is too small to reach large values
    with torch.no_grad():
        losses = repeated_stream_losses(literal_memory, layer, pattern, [256] * 16)
    assert losses.isfinite().all()
    ratio = losses / losses[0]
    assert ratio[1:].max() < 1  # never above where it started
    # A normed network cannot reach every value, so not 0; and only a part of values ten times its own size.
    assert (ratio[-1] < (0.8 if scale == 1 else 0.95)).all()


@layers
@pytest.mark.parametrize("period", [1, 4, 8])
def test_a_split_of_repeated_data_equals_one_call_in_float32(options, period):
    """Rounding is not amplified, however often the same data comes."""
    layer = make_layer(options)
    x = torch.randn(6, period, DIM, generator=torch.Generator().manual_seed(2)).repeat(1, 2048 // period, 1)
    with torch.no_grad():
        whole, end = layer(x)
        first, state = layer(x[:, :777])
        rest, state = layer(x[:, 777:], state)
    assert (torch.cat([first, rest], 1) - whole).abs().max() <= 1e-4 * whole.abs().max()
    scale = max(w.abs().max() for w in end.memory.weights)  # the surprise is added to the weights, so on their scale
    for a, b in zip(state.tensors(), end.tensors(), strict=True):
        assert (a - b).abs().max() <= 1e-4 * scale


@pytest.mark.parametrize("seed", range(6))
def test_the_token_rule_survives_periodic_streams(seed):
    """Momentum along a cycle of correlated keys can resonate."""
    torch.manual_seed(seed)
    layer = NeuralMemory(64, 2, **LAYERS["token"])
    x = torch.stack([torch.randn(p, 64).repeat(-(-2048 // p), 1)[:2048] for p in (1, 2, 3, 4, 6, 8, 10, 12, 24)])
    with torch.no_grad():
        _, state = layer(x)
    assert state.memory.weights[0].flatten(1).norm(dim=1).max() < 50  # it starts below 10


@given(data=st.data(), rule=st.sampled_from(("token", "chunk")), chunk_size=st.sampled_from((2, 4, 16)))
def test_gates_that_change_cannot_amplify(data, rule, chunk_size):
    """Equal keys, gates anywhere within bounds, repeated: (distance, surprise) is mapped linearly and does not grow."""
    layer = NeuralMemory(DIM, 2, rule=rule, depth=1, norm=False, chunk_size=chunk_size)
    count = chunk_size * data.draw(st.integers(1, 8))
    gates = torch.tensor(data.draw(st.lists(st.tuples(*[st.sampled_from((0.0, 0.5, 1.0))] * 2), min_size=count,
                                            max_size=count)), dtype=torch.float64)  # fmt: skip
    eta = layer.eta_max * gates[:, 0]
    theta = layer.config.max_step * (1 - eta) * gates[:, 1]
    start = torch.eye(2, dtype=torch.float64).view(2, 2, 1, 1)  # heads: a distance of 1, a surprise of 1
    state = AssociativeMemoryState([start[0:1]], [start[1:2]], [start[0:1]], 0)
    one, zero = torch.ones(1, count, 2, 1, dtype=torch.float64), torch.zeros(1, count, 2, dtype=torch.float64)
    theta, eta = (x.view(1, -1, 1).expand(1, -1, 2) for x in (theta, eta))
    _, state = associative_memory(one, one, 0 * one, theta, zero, eta, state,
                                  rule=rule, chunk_size=chunk_size, residual=False)  # fmt: skip
    step = torch.stack([state.weights[0].flatten(), state.surprise[0].flatten()])
    assert torch.linalg.eigvals(step).abs().max() <= 1 + 1e-9


def test_one_outlier_does_not_end_learning():
    """One token a thousand times too large, as the last of a chunk, then ordinary tokens again.

    Gates driven to alpha = 1 and theta = eta = 0 would leave the memory at exactly 0, where nothing has a gradient.
    """
    layer = make_layer({})
    x = torch.randn(64, 256, DIM, generator=torch.Generator().manual_seed(3))
    x[:, 63] *= 1e3
    with torch.no_grad():
        _, state = layer(x)
    assert (state.memory.weights[-1].flatten(2).norm(dim=2) > 0).all()


def test_a_matrix_memory_learns_a_repeated_token_exactly(literal_memory):
    pattern = torch.randn(6, 1, DIM, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        losses = repeated_stream_losses(literal_memory, make_layer(LAYERS["token"]), pattern, [256])
    assert (losses[1] < 1e-3 * losses[0]).all()


@pytest.mark.slow
@layers
def test_reading_100_000_tokens_stays_finite(options):
    layer = make_layer(options)
    x = hostile_streams(4096)[:12]  # what repeats goes on repeating
    state = None
    with torch.no_grad():
        for _ in range(25):
            y, state = layer(x, state)
            assert y.isfinite().all(2).all(1).tolist() == [True] * len(x)
    assert all(t.isfinite().all() for t in state.tensors())


@pytest.mark.slow
@layers
@pytest.mark.parametrize("period", [1, 8])
def test_inner_loss_stays_low_for_100_000_tokens_of_repeated_data(literal_memory, options, period):
    layer = make_layer(options)
    pattern = torch.randn(6, period, DIM, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        losses = repeated_stream_losses(literal_memory, layer, pattern, [512] * 200)
    assert losses.isfinite().all()
    ratio = losses[8:] / losses[0]
    assert ratio.mean() < 0.8
    assert ratio.max() < 1
