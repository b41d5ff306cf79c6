"""Models of every variant and what they have read."""

import uuid

import pytest
import torch

from titans import MemoryStore


@pytest.fixture
def read():
    """Read so many random tokens: `read(model, count, state=None, seed=0, rows=1) -> (logits, state)`."""

    def read(model, count, state=None, seed=0, rows=1):
        ids = torch.randint(23, (rows, count), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            out = model(ids, cache=state, use_cache=True)
        return out.logits, out.cache

    return read


@pytest.fixture(scope="session")
def tiny(make_model):
    return make_model("mac", torch.float32)


@pytest.fixture(scope="session")
def other(make_model):
    """A model of the same configuration and other weights."""
    model = make_model("mac", torch.float32)
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    return model


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    """A place for a store: on a disk, and in an object store."""
    return tmp_path / "store" if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def store(root, tiny):
    return MemoryStore(root, tiny)
