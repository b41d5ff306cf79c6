"""Groups are groups, and labels are what a walk through them, step by step, arrives at."""

import itertools

import pytest
import torch

from titans.data.synthetic.registry import make_task
from titans.data.synthetic.state_tracking import (
    STATE_TASKS,
    StateTracking,
    permutation_table,
    permutations,
    running_products,
)
from titans.data.synthetic.task import Size

SIZES = {"parity": 2, "modular-addition": 5, "a5": 60, "s5": 120, "walk": 5}


@pytest.mark.parametrize("task", SIZES)
def test_tables_are_groups(task):
    table = StateTracking(task).table
    size = SIZES[task]
    assert table.shape == (size, size)
    elements = torch.arange(size)
    assert torch.equal(table[0], elements)  # the first element is the identity
    assert torch.equal(table[:, 0], elements)
    for side in (table, table.T):  # so every element has an inverse
        assert torch.equal(side.sort(1).values, elements.expand(size, size))
    assert torch.equal(table[table], table[:, table])  # (ab)c = a(bc), all of them


def test_tables_compose_permutations():
    for even, size in ((False, 120), (True, 60)):
        listed = permutations(5, even)
        assert len({tuple(p) for p in listed.tolist()}) == size
        table = permutation_table(listed)
        assert not torch.equal(table, table.T)  # not abelian
        generator = torch.Generator().manual_seed(0)
        for a, b in torch.randint(size, (200, 2), generator=generator).tolist():
            both = [listed[b][x] for x in listed[a]]  # first a, then b
            assert listed[table[a, b]].tolist() == both


def test_even_permutations_are_products_of_two_swaps():
    swaps = [p for p in permutations(5).tolist() if sum(x != i for i, x in enumerate(p)) == 2]
    products = {tuple(q[x] for x in p) for p, q in itertools.product(swaps, swaps)}
    even = {tuple(p) for p in permutations(5, even=True).tolist()}
    assert products < even
    assert len(even) == 60


@pytest.mark.parametrize("length", [1, 2, 3, 40, 129])
@pytest.mark.parametrize("task", SIZES)
def test_labels_step_by_step(task, length):
    tracking = StateTracking(task)
    ids, labels = tracking.batch(7, Size(length), torch.Generator().manual_seed(1))
    table, inputs = tracking.table, tracking.inputs
    state = torch.zeros(7, dtype=torch.int64)
    for t in range(length):
        state = table[state, inputs[ids[:, t]]]
        assert torch.equal(labels[:, t], state)


def test_labels_of_the_abelian_tasks_are_sums():
    def drawn(task, **options):
        return make_task(task, options).batch(64, Size(50), torch.Generator().manual_seed(2))

    bits, parity = drawn("parity")
    assert torch.equal(parity, bits.cumsum(1) % 2)
    numbers, sums = drawn("modular-addition", modulus=7)
    assert torch.equal(sums, numbers.cumsum(1) % 7)
    assert numbers.unique().tolist() == list(range(7))
    steps, places = drawn("walk", modulus=3)
    assert steps.unique().tolist() == [0, 1]
    assert torch.equal(places, (2 * steps - 1).cumsum(1) % 3)


@pytest.mark.parametrize("task", STATE_TASKS)
def test_answers_are_balanced_and_chance_is_one_over_them(task):
    tracking = StateTracking(task)
    _, labels = tracking.batch(4000, Size(40), torch.Generator().manual_seed(3))
    share = labels[:, -1].bincount(minlength=tracking.vocab_size) / 4000
    assert tracking.chance == 1 / SIZES[task]
    assert (share - tracking.chance).abs().max() < 4 * (tracking.chance / 4000) ** 0.5


def test_running_products_need_no_commutativity():
    table = permutation_table(permutations(3))
    elements = torch.tensor([[1, 2, 5, 3]])
    expected = [1, int(table[1, 2]), int(table[table[1, 2], 5]), int(table[table[table[1, 2], 5], 3])]
    assert running_products(elements, table)[0].tolist() == expected
