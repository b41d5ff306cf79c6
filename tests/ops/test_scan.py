"""Scans give the same numbers and gradients whether or not their groups are recomputed."""

import math

import pytest
import torch

from titans.ops.scan import MIN_GROUP, group_size, scan


@pytest.mark.parametrize("steps", [0, 1, 8, 9, 64, 65, 66, 1000, 10_000])
def test_group_size_balances_states_and_steps(steps):
    size = group_size(steps)
    assert size >= MIN_GROUP
    assert size in (MIN_GROUP, math.ceil(math.sqrt(steps)))
    assert math.ceil(steps / size) <= max(size, 1)


def test_recomputed_groups_run_again_in_backward_and_change_nothing():
    calls = []

    def run(carry, group):
        calls.append(group)
        for x in group:
            carry = torch.sin(carry * x)
        return carry, carry * 2

    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    start = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    results = []
    for recompute in (False, True):
        calls.clear()
        carry, outputs = scan(run, start, x.unbind(0), recompute)
        assert len(outputs) == len(calls) == 3
        results.append((carry, *torch.autograd.grad(carry + sum(outputs), (start, x))))
        assert len(calls) == (6 if recompute else 3)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    calls.clear()
    with torch.no_grad():
        scan(run, start, x.unbind(0), True)
    assert len(calls) == 3
