"""Under FSDP2 a training gives what one process gives: forward, carried states, fresh ones, gradients."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from titans import NeuralMemory

# Rows of a fresh state share their memory; nobody writes into them.
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor:UserWarning")
ROWS = 2


@pytest.fixture(scope="module")
def mesh():
    """A mesh of this process alone: its parameters are spread, gathered and freed as among many."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def train(model, ids, rows):
    """Three steps of a stream, in the second of which some documents start; returns what the model put out."""
    optimizer, state, outputs = torch.optim.SGD(model.parameters(), 0.1), None, []
    for step in range(3):
        if step:
            starts = torch.arange(len(ids))[rows] % 2 == (step == 1)
            state = model.initial_state(int(starts.numel())).where(starts, state.detach())
        output = model(ids[rows], labels=ids[rows], use_cache=True, cache=state)
        state = output.cache
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        outputs.append(output.logits.detach())
    return torch.stack(outputs)


def shard(model, mesh, by_block):
    if by_block:
        for block in model.model.layers:
            fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model):
    return {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in model.named_parameters()}


@pytest.mark.parametrize("by_block", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_training_equals_one_process(model, mesh, by_block, close):
    one, sharded = copy.deepcopy(model).train(), shard(copy.deepcopy(model).train(), mesh, by_block)
    ids = torch.randint(23, (ROWS, 2), generator=torch.Generator().manual_seed(0))  # a part of a chunk
    close(train(sharded, ids, slice(None)), train(one, ids, slice(None)), 1e-9)
    close(whole(sharded), whole(one), 1e-9)


def test_a_layer_alone(mesh, scrambled, close):
    layer = scrambled(NeuralMemory(16, 2, chunk_size=4, persistent_tokens=2))
    sharded = fully_shard(copy.deepcopy(layer), mesh=mesh)
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    for memory in (sharded, layer):
        start = memory.initial_state(2)
        y, state = memory(x, start)
        again, _ = memory(x)
        y, _ = memory(y + again, state)
        y.sum().backward()
    close({n: p.grad.full_tensor() for n, p in sharded.named_parameters()},
          {n: p.grad for n, p in layer.named_parameters()}, 1e-9)  # fmt: skip


def _work(rank, world, store, models, ids, folder):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    rows = slice(rank * ROWS, (rank + 1) * ROWS)
    for number, model in enumerate(models):
        sharded = shard(model, mesh, by_block=True)
        found = train(sharded, ids, rows), whole(sharded)
        torch.save(found, folder / f"{number}-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(make_model, close, tmp_path):
    variants = ("lmm", "mac", "mag", "mal", "transformer", "swa", "rmt", "gated-deltanet", "ttt-mlp", "mamba")
    models = [make_model(variant).train() for variant in variants]
    ids = torch.randint(23, (2 * ROWS, 7), generator=torch.Generator().manual_seed(0))
    arguments = (2, tmp_path / "store", copy.deepcopy(models), ids, tmp_path)
    torch.multiprocessing.spawn(_work, arguments, nprocs=2)
    for number, model in enumerate(models):
        expected, ends = train(model, ids, slice(None)), dict(model.named_parameters())
        for rank in range(2):
            outputs, found = torch.load(tmp_path / f"{number}-{rank}.pt", weights_only=True)
            close(outputs, expected[:, rank * ROWS : (rank + 1) * ROWS], 1e-9)
            close(found, ends, 1e-9)
