"""PyTorch's transforms of functions give what plain autograd gives: `torch.func`, batched and forward derivatives."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

MIXERS = (
    "memory", "memory-channelwise", "memory-chunk-gates", "memory-token", "attention", "attention-full", "gate",
    "context", "context-retrieved", "gated-delta-net", "mamba", "mamba2",
)  # fmt: skip
ALIKE = (
    "memory-four", "memory-plain", "memory-gate-floor", "memory-token-channelwise", "ttt-mlp", "context-chunk-gates",
    "retention", "gated-linear-attention", "delta-net",
)  # fmt: skip
pytestmark = [
    pytest.mark.parametrize(
        "mixer", [*MIXERS, *(pytest.param(m, marks=pytest.mark.slow) for m in ALIKE)], indirect=True
    ),
    # PyTorch's own rules: some it compiles by TorchScript, for others it takes the batch apart.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]
TOKENS = 8  # more than one chunk, segment and window, and a part of the next


def tokens(rows, seed=0):
    return torch.randn(rows, TOKENS, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_of(layer):
    def loss(parameters, x):
        y, state = functional_call(layer, parameters, (x,))
        last, _ = functional_call(layer, parameters, (x[:, :2], state))
        return (y * y).sum() + last.sin().sum()

    return loss


@pytest.fixture(scope="module")
def gradients(mixer):
    """The loss's gradients by plain autograd: of the parameters, summed over rows, and of each row's tokens."""
    parameters, x = dict(mixer.named_parameters()), tokens(3).requires_grad_()
    loss = loss_of(mixer)(parameters, x)
    found = torch.autograd.grad(loss, [*parameters.values(), x], materialize_grads=True)
    return dict(zip(parameters, found, strict=False)), found[-1]


def test_grad(mixer, gradients, close):
    parameters = {name: p.detach() for name, p in mixer.named_parameters()}
    close(grad(loss_of(mixer), (0, 1))(parameters, tokens(3)), gradients, 1e-10)


def test_gradients_of_each_row(mixer, gradients, close):
    """As for differential privacy or influence functions: vmap of grad."""
    parameters = {name: p.detach() for name, p in mixer.named_parameters()}
    by_row = vmap(grad(loss_of(mixer), (0, 1)), (None, 0))(parameters, tokens(3).unsqueeze(1))
    summed = {name: g.sum(0) for name, g in by_row[0].items()}
    close((summed, by_row[1].squeeze(1)), gradients, 1e-10)


def test_forward_derivatives(mixer, gradients, close):
    parameters = {name: p.detach() for name, p in mixer.named_parameters()}
    x, direction = tokens(3), tokens(3, seed=1)
    _, slope = jvp(lambda x: loss_of(mixer)(parameters, x), (x,), (direction,))
    with forward_ad.dual_level():
        dual = loss_of(mixer)(parameters, forward_ad.make_dual(x, direction))
        close(forward_ad.unpack_dual(dual).tangent, slope, 1e-10)
    close(slope, (gradients[1] * direction).sum(), 1e-10)


def test_batched_gradients(mixer, close):
    """`jacobian(vectorize=True)`, and vmap over plain autograd."""
    x, mix = tokens(1), tokens(4, seed=1)

    def outputs(x):
        y, _ = mixer(x)
        return (mix * y).sum((1, 2))

    one_by_one = jacobian(outputs, x)
    close(jacobian(outputs, x, vectorize=True), one_by_one, 1e-10)
    x.requires_grad_()
    y = outputs(x)
    (rows,) = vmap(lambda v: torch.autograd.grad(y, x, v))(torch.eye(4, dtype=x.dtype))
    close(rows, one_by_one, 1e-10)


def test_second_derivatives(mixer, close):
    """The same by hand and by autograd of autograd, also where a call's inputs depend on each other."""
    x, direction = tokens(2).requires_grad_(), tokens(2, seed=1)
    parameters = dict(mixer.named_parameters())

    def slope(x):
        (found,) = torch.autograd.grad(loss_of(mixer)(parameters, x), x, create_graph=True)
        return (found * direction).sum()

    (once,) = torch.autograd.grad(loss_of(mixer)(parameters, x), x)
    with sdpa_kernel(SDPBackend.MATH):  # the only form of attention that PyTorch differentiates twice
        close(slope(x), (once * direction).sum(), 1e-10)
        (second,) = torch.autograd.grad(slope(x), x)
    parameters = {name: p.detach() for name, p in parameters.items()}
    _, forward = jvp(lambda x: grad(loss_of(mixer), 1)(parameters, x), (x.detach(),), (direction,))
    close(second, forward, 1e-8)
