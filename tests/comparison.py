"""Comparisons of trees of numbers, and streams read piece by piece; fixtures of these names hand them to tests."""

import torch
from torch.utils import _pytree as pytree


def distance(actual, expected):
    """Largest difference, relative to the largest number that is expected (or to 0.01 if that is smaller)."""
    actual, expected = (torch.as_tensor(x).detach().double() for x in (actual, expected))
    actual, expected = torch.broadcast_tensors(actual, expected)  # an offset for all rows, and one for each
    if actual.numel() == 0:
        return 0.0
    assert actual.isfinite().all()
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=0.01))


def close(actual, expected, tolerance, name=""):
    """Assert that two trees of numbers differ by no more than the tolerance."""
    mine, spec = pytree.tree_flatten_with_path(actual)
    theirs, other = pytree.tree_flatten_with_path(expected)
    assert spec == other, f"{name} differs in structure"
    assert mine, f"{name} is empty: nothing was compared"
    for (path, a), (_, b) in zip(mine, theirs, strict=True):
        error = distance(a, b)
        assert error <= tolerance, f"{name}{pytree.keystr(path)} is off by {error:.2e}, more than {tolerance:.0e}"


def same(actual, expected, name=""):
    """Assert that two trees of numbers are equal bit for bit."""
    mine, spec = pytree.tree_flatten_with_path(actual)
    theirs, other = pytree.tree_flatten_with_path(expected)
    assert spec == other, f"{name} differs in structure"
    for (path, a), (_, b) in zip(mine, theirs, strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), f"{name}{pytree.keystr(path)} differs"


def stream(step, lengths, state=None):
    """Run piece by piece: `step(start, stop, state) -> (y, state)`."""
    outputs, start = [], 0
    for length in lengths:
        y, state = step(start, start + length, state)
        outputs.append(y)
        start += length
    return torch.cat(outputs, 1), state
