"""The memory layer: against its literal definition, reading, surprise, precision, compilation, what it refuses."""

import copy

import pytest
import torch

from titans import NeuralMemory

DIM = 16
MEMORIES = ["memory", "memory-matrix", "memory-three", "memory-four", "memory-plain", "memory-no-forgetting",
            "memory-channelwise", "memory-chunk-gates", "memory-token", "memory-token-channelwise", "memory-gate-floor",
            "memory-token-gate-floor"]  # fmt: skip


def tokens(batch, count, seed=0, dtype=torch.float64):
    return torch.randn(batch, count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", MEMORIES)
def test_equals_the_layer_written_out(make_mixer, literal_memory, close, name):
    layer, x = make_mixer(name), tokens(2, 14)
    with torch.no_grad():
        expected, memory = literal_memory(layer).write(x)
        y, state = layer(x)
    close(y, expected, 1e-10)
    close((state.memory.weights, state.memory.surprise), (memory.weights, memory.surprise), 1e-10)


def test_large_values_are_bounded(make_mixer, literal_memory, close):
    """Values beyond an RMS of 10 per head are scaled down to it; inputs beyond 10,000 are clipped."""
    layer, x = make_mixer("memory-matrix"), 40 * tokens(1, 7)
    with torch.no_grad():
        literal = literal_memory(layer)
        assert (literal.project(2, x).square().mean(-1) > 100).any()
        expected, memory = literal.write(x)
        y, state = layer(x)
        close((y, state.memory.weights), (expected, memory.weights), 1e-9)
        close(layer(1e7 * x.sign())[0], layer(1e4 * x.sign())[0], 0.0)


@pytest.mark.parametrize("name", MEMORIES)
def test_read_does_not_write(make_mixer, literal_memory, close, same, name):
    layer, x, ask = make_mixer(name), tokens(2, 14), tokens(2, 5, seed=1)
    with torch.no_grad():
        _, state = layer(x)
        before = state.clone()
        found = layer.read(ask, state)
        same(state, before)
        literal = literal_memory(layer)
        q = literal.queries(torch.cat([x, ask], 1))[:, 14:]  # the convolution sees the stream before
        close(found, literal.read_out(literal.recall(q, state.memory.weights), ask), 1e-10)
        first = literal.read_out(literal.recall(literal.queries(ask), literal.weights), ask)
        if layer.persistent is None:
            close(layer.read(ask), first, 1e-10)
        assert not torch.allclose(found, first)


def test_read_with_padding(make_mixer, close):
    layer, x = make_mixer("memory"), tokens(2, 6)
    mask = torch.tensor([[False, False, True, True, True, True], [True, True, True, False, True, False]])
    with torch.no_grad():
        y = layer.read(x, mask=mask)
        assert (y[~mask] == 0).all()
        for row in range(2):
            close(y[row : row + 1, mask[row]], layer.read(x[row : row + 1, mask[row]]), 1e-12)


def test_forward_is_read_where_nothing_is_written(make_mixer, close):
    layer, x = copy.deepcopy(make_mixer("memory-no-forgetting")), tokens(2, 9)
    with torch.no_grad():
        layer.gates.bias[: layer.num_heads] = -1e4  # theta = 0
        y, state = layer(x)
        close(y, layer.read(x), 1e-12)
        close(state.memory.weights, layer.initial_state(2).memory.weights, 0.0)


@pytest.mark.parametrize("name", ["memory-gate-floor", "memory-token-gate-floor"])
def test_closed_gates_leave_the_memory_as_it_was(make_mixer, close, name):
    """Bit for bit, in evaluation: forgetting closes with writing. In training the same gates let something through."""
    layer, x = copy.deepcopy(make_mixer(name)), tokens(2, 9)
    with torch.no_grad():
        layer.gates.weight[: layer.num_heads] = 0
        layer.gates.bias[: layer.num_heads] = -0.1  # open by 48 %, and the floor is 50 %
        y, state = layer(x)
        close(state.memory.weights, layer.initial_state(2).memory.weights, 0.0)
        close(y, layer.read(x), 1e-12)
        _, trained = layer.train()(x)
        assert not torch.allclose(trained.memory.weights[0], state.memory.weights[0])
        layer.gates.bias[: layer.num_heads] = 0.1
        close(layer.eval()(x), layer.train()(x), 0.0)


@pytest.mark.parametrize("name", ["memory", "memory-token", "memory-three"])
def test_surprise(make_mixer, close, name):
    layer, x = make_mixer(name), tokens(2, 8)
    mask = torch.tensor([[True] * 8, [False] * 3 + [True] * 5])
    with torch.no_grad():
        y, state, surprise = layer(x, None, mask, return_surprise=True)
        close((y, state), layer(x, None, mask), 0.0)
        assert surprise.shape == (2, 8, layer.num_heads)
        assert (surprise[mask] > 0).all()
        assert (surprise[~mask] == 0).all()
        *_, alone = layer(x[1:, 3:], return_surprise=True)
        close(surprise[1:, 3:], alone, 1e-10)


def test_surprise_falls_as_a_token_repeats():
    torch.manual_seed(0)
    layer = NeuralMemory(DIM, 2, depth=1, rule="token")
    x = tokens(1, 1, dtype=torch.float32).expand(-1, 60, -1)
    *_, surprise = layer(x, return_surprise=True)
    assert (surprise[:, -1] < 0.05 * surprise[:, 3]).all()


def test_the_convolution_reaches_three_tokens_back(make_mixer):
    """Without a memory to carry anything, a token reaches exactly the next three through the convolutions."""
    layer = copy.deepcopy(make_mixer("memory-no-forgetting"))
    with torch.no_grad():
        layer.gates.bias[: layer.num_heads] = -1e4
        x = tokens(1, 10)
        other = x.clone()
        other[:, 2] += 1
        changed = (layer(x)[0] != layer(other)[0]).any(-1)[0]
    assert changed.tolist() == [False] * 2 + [True] * 4 + [False] * 4


# Precision and size ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"depth": 1}, {"hidden_lr": 1.0}, {"rule": "chunk", "gates": "chunk", "channelwise_forgetting": True}],
)
def test_the_inner_state_stays_in_float32(close, options):
    torch.manual_seed(0)
    layer, x = NeuralMemory(DIM, 2, chunk_size=4, persistent_tokens=2, **options), tokens(2, 11, dtype=torch.float32)
    expected, _ = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x)
        y.float().sum().backward()
    assert {t.dtype for t in state.memory.tensors()} == {torch.float32}
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    close(y.float(), expected, 0.05)

    half = copy.deepcopy(layer).bfloat16()
    y, state = half(x.bfloat16())
    y2, state = half(x.bfloat16(), state)
    assert y.dtype == y2.dtype == torch.bfloat16
    assert {t.dtype for t in state.memory.tensors()} == {torch.float32}
    close(y.float(), expected, 0.05)
    y2.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in half.parameters())


def test_every_parameter_learns():
    for options in (
        {},
        {"depth": 4, "channelwise_forgetting": True},
        {"depth": 1},
        {"hidden_lr": 1.0},
        {"rule": "chunk", "gates": "chunk"},
    ):
        torch.manual_seed(0)
        layer = NeuralMemory(DIM, 2, chunk_size=4, persistent_tokens=2, **options)
        y, _ = layer(tokens(2, 9, dtype=torch.float32))
        y.square().sum().backward()
        for name, p in layer.named_parameters():
            assert p.grad is not None, name
            assert (p.grad != 0).any(), name
        storages = {p.untyped_storage().data_ptr() for p in layer.parameters()}
        assert len(storages) == len(list(layer.parameters()))  # real parameters, no views of others


def test_state_dict_round_trip(make_mixer, same):
    layer = make_mixer("memory")
    other = NeuralMemory(DIM, 2, chunk_size=3, expansion=1, persistent_tokens=2).double()
    other.load_state_dict(layer.state_dict())
    x = tokens(1, 7)
    same(other(x), layer(x))


@pytest.mark.filterwarnings("ignore")  # torch.compile meets deprecations of its own
@pytest.mark.parametrize(("backend", "options"), [
    pytest.param("aot_eager", {}, marks=pytest.mark.slow),
    pytest.param("aot_eager", {"depth": 1, "rule": "token", "persistent_tokens": 1}, marks=pytest.mark.slow),
    pytest.param(
        "aot_eager", {"rule": "chunk", "gates": "chunk", "channelwise_forgetting": True}, marks=pytest.mark.slow
    ),
    pytest.param("inductor", {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_compiled_equals_eager(close, backend, options):
    """Outputs, state and gradients; a call that starts a stream, and one that continues it; without a graph break."""
    if backend == "inductor":
        cpp_builder = pytest.importorskip("torch._inductor.cpp_builder")
        try:
            cpp_builder.get_cpp_compiler()
        except Exception as e:
            pytest.skip(f"no C++ compiler: {e}")
    torch.manual_seed(0)
    torch.compiler.reset()
    layer = NeuralMemory(DIM, 2, chunk_size=4, **options)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    x = tokens(2, 4, dtype=torch.float32)
    results = []
    for run in (layer, compiled):
        layer.zero_grad()
        y, state = run(x)
        y.square().sum().backward()
        gradients = {n: p.grad.clone() for n, p in layer.named_parameters()}
        results.append((y, *run(2 * x, state.detach()), gradients))
    close(results[1], results[0], 1e-5)


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"num_heads": 3}, "hidden_size=16 is not a multiple of num_heads=3"),
    ({"num_heads": 0}, "num_heads=0"),
    ({"hidden_size": 0}, "hidden_size=0"),
    ({"depth": 0}, "depth=0"),
    ({"expansion": -1}, "expansion=-1"),
    ({"chunk_size": 0}, "chunk_size=0"),
    ({"chunk_size": -4}, "chunk_size=-4"),
    ({"rule": "online"}, "rule='online'"),
    ({"gates": "none"}, "gates='none'"),
    ({"activation": "tanh"}, "activation='tanh'"),
    ({"persistent_tokens": -1}, "persistent_tokens=-1"),
    ({"theta_max": 0.0}, "theta_max=0.0"),
    ({"theta_max": -1.0}, "theta_max=-1.0"),
    ({"theta_max": float("nan")}, "theta_max=nan"),
    ({"theta_max": float("inf"), "momentum": False}, "theta_max=inf"),
    ({"theta_max": 0.5, "rule": "chunk"}, "theta_max=0.5 leaves no room for momentum: keep it below 0.5"),
    ({"theta_max": 1.0, "rule": "token", "depth": 1}, "keep it below 1.0"),
    ({"gate_floor": 1.0}, "gate_floor=1.0"),
    ({"gate_floor": -0.1}, "gate_floor=-0.1"),
    ({"rule": "token", "norm": True}, "rule='token' needs norm=False"),
    ({"rule": "token", "residual": True}, "residual=True needs depth=1 or hidden_lr"),
    ({"hidden_lr": 1.0, "rule": "chunk"}, "hidden_lr needs rule='token'"),
    ({"rule": "token", "hidden_lr": 1.5}, "hidden_lr=1.5"),
    ({"rule": "token", "depth": 1, "gates": "chunk"}, "gates='chunk' needs rule='chunk'"),
])  # fmt: skip
def test_options_that_cannot_work(options, message):
    with pytest.raises(ValueError, match=message):
        NeuralMemory(**{"hidden_size": DIM, "num_heads": 2, **options})


def test_states_of_other_layers():
    x = torch.randn(2, 5, DIM)
    layer = NeuralMemory(DIM, 2)
    chunk = {"rule": "chunk", "depth": 1}
    others = ({"num_heads": 4}, {"hidden_lr": 1.0}, {"expansion": 2}, {"use_short_conv": False})
    for options in (*others, chunk, {**chunk, "gates": "chunk"}):
        _, state = NeuralMemory(**{"hidden_size": DIM, "num_heads": 2, **options})(x)
        with pytest.raises(ValueError, match="another configuration"):
            layer(x, state)
    _, state = NeuralMemory(DIM, 2, rule="chunk")(x)
    with pytest.raises(ValueError, match="chunk_size=4"):
        NeuralMemory(DIM, 2, rule="chunk", chunk_size=4)(x, state)
    _, state = layer(x)
    with pytest.raises(ValueError, match="NaN or infinity"):
        layer.read(x * torch.nan, state)
    with pytest.raises(ValueError, match="x has shape"):
        layer.read(x[..., :3], state)
