"""What holds for every token mixer, for the recurrences below them and for the models above.

A stream is cut anywhere, causal, apart from other rows, without regard to padding; gradients cross its cuts, and the
state that is handed in stays as it is. Each property is a function of a `Subject`; `PROPERTIES` names them all.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.comparison import close, same, stream
from titans import MemoryState
from titans.ops.state import GrowingState

WIDTH, VOCABULARY = 16, 23  # of mixers' tokens, and of models
pieces = st.lists(st.integers(1, 8), min_size=1, max_size=5)


@dataclasses.dataclass
class Subject:
    """A mixer, an op or a model, in double precision with parameters under which everything matters."""

    module: torch.nn.Module
    step: Callable[..., tuple[Tensor, Any]]  # (x, state=None, mask=None) -> (y, state)
    inputs: Callable[..., Tensor]  # (rows, tokens, seed=0) -> x
    changed: Callable[[Tensor], Tensor]  # other inputs of the same shape
    reach: float = float("inf")  # outputs that an input can change, its own included

    def whole(self, x):
        """Outputs and state after one call, without gradients."""
        with torch.no_grad():
            return self.step(x)

    def split(self, x, lengths):
        """The same in pieces."""
        with torch.no_grad():
            return stream(lambda start, stop, state: self.step(x[:, start:stop], state), lengths)


def of_mixer(mixer):
    """Ask it of a mixer; what stands at padding is NaN, and its output there 0."""

    def step(x, state=None, mask=None):
        if mask is None:
            return mixer(x, state)
        y, state = mixer(torch.where(mask.unsqueeze(-1), x, torch.nan), state, mask)
        assert (y[~mask] == 0).all()
        return y, state

    def inputs(rows, tokens, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(rows, tokens, WIDTH, dtype=torch.float64, generator=generator)

    reach = getattr(mixer, "window", float("inf"))
    if reach < float("inf") and mixer.attention.initial_conv_state() is not None:
        reach += 3  # through the convolution before it
    return Subject(mixer, step, inputs, lambda x: x.flip(-1) + 0.5, reach)


class Op(torch.nn.Module):
    """A recurrence as a layer: a token is the number of one of some inputs, which are the parameters."""

    def __init__(self, run, inputs, start):
        super().__init__()
        self.run, self.start = run, start
        self.inputs = torch.nn.ParameterDict({name: x[0].detach().clone() for name, x in inputs.items()})

    def initial_state(self, batch_size):
        return self.start.expand(batch_size)

    def forward(self, x, state=None, mask=None):
        found = {name: table[x] for name, table in self.inputs.items()}
        if mask is not None:
            there = {name: mask.view(*mask.shape, *(1,) * (y.dim() - 2)) for name, y in found.items()}
            found = {name: torch.where(there[name], y, torch.nan) for name, y in found.items()}
        y, state = self.run(found, self.initial_state(len(x)) if state is None else state, mask)
        assert mask is None or (y[~mask] == 0).all()
        return y.flatten(2), state


def of_op(run, inputs, start):
    """Ask it of an op.

    Args:
        run: `(inputs, state, mask) -> (y, state)`.
        inputs: `VOCABULARY` tokens of one row, `[1, T, ...]` each, of which streams are made.
        start: a state of one row.
    """
    op = Op(run, inputs, start)

    def tokens(rows, count, seed=0):
        return torch.randint(VOCABULARY, (rows, count), generator=torch.Generator().manual_seed(seed))

    return Subject(op, op, tokens, lambda x: (x + 5) % VOCABULARY)


def of_model(model):
    """Ask it of a language model: its logits, and its state but for the count of positions, padding included."""

    def step(x, state=None, mask=None):
        if mask is not None:
            x = torch.where(mask, x, (x + 7) % VOCABULARY)
        out = model(x, attention_mask=mask, cache=state, use_cache=True)
        return out.logits, out.cache

    def inputs(rows, tokens, seed=0):
        return torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))

    config = model.config
    blocks = [name for layer in range(config.num_hidden_layers) for name in config.mixers(layer)]
    windows = {"attention", "attention_alone"}
    seen = config.sliding_window + (3 if config.paper_form else 0)
    reach = len(blocks) * (seen - 1) + 1 if windows.issuperset(blocks) else float("inf")
    return Subject(model, step, inputs, lambda x: (x + 5) % VOCABULARY, reach)


def numbers(state):
    """The state's numbers; of a model's state without its count of positions, which counts padding, too."""
    if not isinstance(state, MemoryState):
        return state
    return [state.layers, *([] if state.segment is None else [state.segment])]


# Properties ------------------------------------------------------------------------------------------------


def any_split_equals_one_call(subject):
    """However a stream is cut, and token by token, outputs and the final state are those of one call."""

    @settings(max_examples=settings.default.max_examples // 3)
    @given(pieces)
    @example([1] * 17)
    @example([6, 11])
    @example([4, 5, 3, 12])
    def check(lengths):
        x = subject.inputs(2, sum(lengths))
        close(subject.split(x, lengths), subject.whole(x), 1e-10)

    check()


def padding_anywhere_and_ragged_rows(subject):
    """Every row of a padded, split batch equals its own tokens in one call: outputs and final state."""

    @settings(max_examples=settings.default.max_examples // 3)
    @given(pieces, st.integers(0, 2**16), st.sampled_from((0.3, 0.6, 0.9)))
    def check(lengths, seed, density):
        x = subject.inputs(3, sum(lengths), seed)
        mask = torch.rand(3, sum(lengths), generator=torch.Generator().manual_seed(seed)) < density
        with torch.no_grad():
            y, state = stream(lambda a, b, state: subject.step(x[:, a:b], state, mask[:, a:b]), lengths)
            for row in range(3):
                final = numbers(state.select(torch.tensor([row])))
                if mask[row].any():
                    expected, alone = subject.step(x[row : row + 1, mask[row]])
                    close((y[row : row + 1, mask[row]], final), (expected, numbers(alone)), 1e-10)
                else:
                    close(final, numbers(subject.module.initial_state(1)), 0.0)

    check()


def causal_and_remembering(subject):
    """A changed token changes nothing before it, exactly, and everything after it that it can reach."""
    x = subject.inputs(2, 17)
    y, state = subject.whole(x)
    for p in (0, 3, 4, 5, 11):
        other = x.clone()
        other[:, p] = subject.changed(x[:, p])
        changed, final = subject.whole(other)
        same(changed[:, :p], y[:, :p])
        for t in range(p, 17):
            assert torch.equal(changed[:, t], y[:, t]) == (t >= p + subject.reach), f"token {p} at {t}"
        if subject.reach > 17:
            assert any(not torch.equal(a, b) for a, b in zip(final.tensors(), state.tensors(), strict=True))


def rows_are_independent(subject):
    """A row depends on no other, and rows may stand in any order."""
    x = subject.inputs(3, 11)
    first, rest = torch.tensor([0]), torch.tensor([2, 1])
    y, state = subject.whole(x)
    changed, final = subject.whole(torch.cat([x[:1], subject.changed(x[1:])]))
    same((changed[:1], final.select(first)), (y[:1], state.select(first)))
    assert not torch.equal(changed[1], y[1])
    close((y[rest], state.select(rest)), subject.whole(x[rest]), 1e-11)


def the_state_handed_in_is_unchanged(subject):
    """So it can be gone on from twice; and to start from the initial state is to start from none."""
    x = subject.inputs(2, 9)
    with torch.no_grad():
        _, state = subject.step(x[:, :4])
        before = state.clone()
        first = subject.step(x[:, 4:], state)
        same(state, before)
        same(subject.step(x[:, 4:], state), first)
        start = subject.module.initial_state(2)
        before = start.clone()
        same(subject.step(x, start), subject.step(x))
        same(start, before)


def gradients_cross_a_split(subject):
    """What one piece wrote is trained by what a later piece reads, unless the state is detached."""
    x = subject.inputs(2, 13)
    parameters = dict(subject.module.named_parameters())
    weight = torch.randn(2, 13, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def gradients(*outputs):
        y = torch.cat(outputs, 1)
        total = (y * weight.repeat(1, 1, 2)[..., : y.shape[-1]]).sum()
        found = torch.autograd.grad(total, tuple(parameters.values()), allow_unused=True, retain_graph=True)
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(parameters.items(), found, strict=True)}

    whole = gradients(subject.step(x)[0])
    assert all(g.isfinite().all() for g in whole.values())
    a, state = subject.step(x[:, :6])
    b, _ = subject.step(x[:, 6:], state)
    close(gradients(a, b), whole, 1e-9)
    c, _ = subject.step(x[:, 6:], state.detach())
    detached = gradients(a, c)
    assert any(not torch.allclose(detached[n], g) for n, g in whole.items()) or subject.reach == 1


def the_state_does_not_grow(subject):
    """But where a layer keeps the keys and values of all tokens, which then says so by a `GrowingState`."""

    def growing(state):
        if isinstance(state, GrowingState):
            return state.resized(1).nbytes - state.resized(0).nbytes
        layers = getattr(state, "layers", [])
        return sum(growing(part) for layer in layers for part in layer)

    start = subject.module.initial_state(1)
    for tokens in (1, 2, 7, 40):
        assert subject.whole(subject.inputs(1, tokens))[1].nbytes == start.nbytes + tokens * growing(start)


def states_are_no_views_of_parameters(subject):
    """An optimizer step would change them, and sharded parameters are freed."""
    parameters = {p.untyped_storage().data_ptr() for p in subject.module.parameters()}
    _, state = subject.whole(subject.inputs(2, 1))
    for tensor in (*subject.module.initial_state(2).tensors(), *state.tensors()):
        assert tensor.untyped_storage().data_ptr() not in parameters


PROPERTIES = {f.__name__: f for f in (
    any_split_equals_one_call,
    padding_anywhere_and_ragged_rows,
    causal_and_remembering,
    rows_are_independent,
    the_state_handed_in_is_unchanged,
    gradients_cross_a_split,
    the_state_does_not_grow,
    states_are_no_views_of_parameters,
)}  # fmt: skip
