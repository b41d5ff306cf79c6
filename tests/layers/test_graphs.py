"""Layers as graphs: compiled for many lengths, exported with the length left open, run without values."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export

from titans import NeuralMemory

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile meets deprecations of its own
DIM = 16


def tokens(rows, count, dtype=torch.float32):
    return torch.randn(rows, count, DIM, generator=torch.Generator().manual_seed(count), dtype=dtype)


def make(**options):
    torch.manual_seed(0)
    return NeuralMemory(DIM, 2, chunk_size=4, **options).eval()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"persistent_tokens": 2}, {"rule": "token", "depth": 1}])
def test_compiled_for_many_lengths(close, options):
    """More than dynamo makes graphs for: from then on the layer runs as it is."""
    layer, state, expected = make(**options), None, None
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager")
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=2):
        for count in (5, 9, 7, 1, 1, 1, 3):
            x = tokens(2, count)
            y, state = compiled(x, state)
            z, expected = layer(x, expected)
            close(y, z, 1e-5)
    close(state, expected, 1e-5)


class Outputs(torch.nn.Module):
    """Of a layer, without its state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"persistent_tokens": 2}, {"depth": 1}, {"hidden_lr": 1.0},
    {"rule": "chunk", "gates": "chunk", "channelwise_forgetting": True},
])  # fmt: skip
def test_exported_with_the_length_left_open(close, options):
    layer = make(**options)
    program = export(Outputs(layer), (tokens(2, 7),), dynamic_shapes=({1: Dim("tokens", min=2, max=4096)},))
    for count in (2, 3, 4, 9, 40):
        close(program.module()(tokens(2, count)), layer(tokens(2, count))[0], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["context", "attention", "gated-delta-net", "mamba"])
def test_a_length_that_cannot_be_left_open_is_refused(make_mixer, name):
    with pytest.raises(ValueError, match="export it for one number, with its state"):
        export(Outputs(make_mixer(name)), (tokens(2, 7, torch.float64),), dynamic_shapes=({1: Dim("n", min=2)},))


@pytest.mark.slow
def test_exported_for_one_length_with_its_state(mixer, close):
    """For a stream: the program takes a state and gives the next one."""
    x = tokens(2, 3, torch.float64)
    _, state = mixer(x)
    program = export(mixer, (x, state))
    close(program.module()(x, state), mixer(x, state), 1e-10)


@pytest.mark.parametrize("mixer", [
    "memory", "memory-token-channelwise", "memory-chunk-gates", "attention", "attention-full", "context",
    "context-retrieved", "gate", "gated-delta-net", "mamba", "mamba2",
], indirect=True)  # fmt: skip
def test_without_values(mixer):
    """On the device "meta" and with fake tensors: shapes alone, forward and backward."""
    x, mask = tokens(2, 7, torch.float64), torch.ones(2, 7, dtype=torch.bool)
    _, state = mixer(x[:, :3])
    y, after = mixer(x, state, mask)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        found, last = mixer(fake.from_tensor(x), state.map(fake.from_tensor), mask)
    assert (found.shape, last.shapes) == (y.shape, after.shapes)
    empty = copy.deepcopy(mixer).to("meta")
    found, last = empty(x.to("meta"), state.detach().to("meta"))
    assert (found.shape, last.shapes) == (y.shape, after.shapes)
    found.sum().backward()
