"""States are values: every method returns a new one."""

import dataclasses

import pytest
import torch
from torch.utils import _pytree as pytree

from titans.ops import initial_state
from titans.ops.state import State


class Pair(State):
    number: int | torch.Tensor
    parts: list[torch.Tensor]
    flags: torch.Tensor | None


@pytest.fixture
def pair():
    return Pair(3, [torch.arange(6.0).view(3, 2), torch.arange(3)], None)


def test_states_are_frozen(pair):
    with pytest.raises(dataclasses.FrozenInstanceError):
        pair.number = 4


def test_states_are_pytrees(pair):
    leaves, spec = pytree.tree_flatten(pair)
    assert len(leaves) == 3
    again = pytree.tree_unflatten(leaves, spec)
    assert type(again) is Pair
    assert again.number == 3
    assert list(pair.tensors()) == pair.parts


def test_to_casts_floating_point_only(pair):
    half = pair.to(torch.float16)
    assert [x.dtype for x in half.tensors()] == [torch.float16, torch.int64]
    assert [x.dtype for x in pair.tensors()] == [torch.float32, torch.int64]
    meta = pair.to("meta")
    assert {x.device.type for x in meta.tensors()} == {"meta"}


def test_detach_and_clone(pair):
    x = torch.ones(3, 2, requires_grad=True)
    state = dataclasses.replace(pair, parts=[x * 2])
    assert state.parts[0].requires_grad
    assert not state.detach().parts[0].requires_grad
    copy = pair.clone()
    copy.parts[0].zero_()
    assert pair.parts[0].sum() == 15


def test_select_and_expand_rows(pair):
    chosen = pair.select(torch.tensor([2, 0, 2, 2]))
    assert chosen.parts[0].tolist() == [[4, 5], [0, 1], [4, 5], [4, 5]]
    assert chosen.parts[1].tolist() == [2, 0, 2, 2]
    assert chosen.number == 3
    assert (pair.rows, chosen.rows) == (3, 4)
    assert pair.select(torch.tensor([1])).expand(3).parts[0].tolist() == [[2, 3]] * 3


def test_where_mixes_rows(pair):
    other = Pair(5, [-pair.parts[0], -pair.parts[1]], None)
    mixed = pair.where(torch.tensor([True, False, True]), other)
    assert mixed.parts[0].tolist() == [[0, 1], [-2, -3], [4, 5]]
    assert mixed.parts[1].tolist() == [0, -1, 2]
    assert mixed.number.tolist() == [3, 5, 3]
    assert pair.where(torch.tensor([True, False, True]), dataclasses.replace(other, number=3)).number == 3
    ragged = dataclasses.replace(other, number=torch.tensor([7, 8, 9]))
    assert pair.where(torch.tensor([True, False, True]), ragged).number.tolist() == [3, 8, 3]
    with pytest.raises(ValueError, match="different structure"):
        pair.where(torch.tensor([True]), Pair(3, [pair.parts[0]], None))


def test_nbytes():
    state = initial_state([torch.zeros(2, 4, 8), torch.zeros(2, 8, 4)], batch_size=3)
    assert state.nbytes == 3 * (3 * 2 * 2 * 32) * 4


def test_initial_state_starts_without_surprise_at_its_anchor():
    w = torch.randn(2, 4, 4, requires_grad=True)
    state = initial_state([w])
    assert torch.equal(state.weights[0], w.unsqueeze(0))
    assert torch.equal(state.anchor[0], w.unsqueeze(0))
    assert (state.surprise[0] == 0).all()
    assert state.offset == 0
    assert state.weights[0].requires_grad


def test_rows_taken_apart_and_put_together_again(pair):
    counted = dataclasses.replace(pair, number=torch.tensor([3, 3, 5]))
    rows = [counted.row(i) for i in range(3)]
    assert [row.number for row in rows] == [3, 3, 5]
    assert all(type(row.number) is int for row in rows)
    assert isinstance(rows[2].parts[1], torch.Tensor)  # only a field that may be an integer becomes one
    together = State.cat(rows)
    assert together.number.tolist() == [3, 3, 5]
    assert together.parts[0].equal(pair.parts[0])
    assert State.cat(rows[:2]).number == 3
    assert State.cat([pair, counted]).number.tolist() == [3, 3, 3, 3, 3, 5]


def test_rows_of_nested_states_count_for_themselves():
    memory = dataclasses.replace(initial_state([torch.ones(1, 2, 2)], 2), offset=torch.tensor([4, 6]))
    rows = [dataclasses.replace(Pair(0, [memory], None)).row(i).parts[0] for i in range(2)]
    assert [row.offset for row in rows] == [4, 6]


def test_states_of_different_structure_are_not_joined(pair):
    with pytest.raises(ValueError, match="different structure"):
        State.cat([pair, dataclasses.replace(pair, parts=[])])


def test_a_row_shares_no_memory(pair):
    row = pair.row(0)
    row.parts[0].zero_()
    assert pair.parts[0][0].tolist() == [0, 1]
