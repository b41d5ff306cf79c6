"""What clients and operators are told of the store: who can help, and whether to try again."""

import copy
import logging
import time

import pytest
import torch
from fastapi.testclient import TestClient

from titans.models.write_policy import WritePolicy
from titans.persistence import MemoryStore, StoreError
from titans.serving.app import Limits, create_app
from titans.serving.engine import Engine
from titans.serving.errors import as_api_error
from titans.serving.metrics import Metrics
from titans.serving.service import Service


@pytest.mark.parametrize(("kind", "status"), [("full", 507), ("read-only", 503), ("gone", 503), ("failed", 503)])
def test_a_store_that_fails_is_no_mistake_of_the_client(kind, status):
    error = as_api_error(StoreError(kind, "as the system says"))
    assert (error.status, error.code) == (status, "store_failed")
    assert "(as the system says): " in error.message


@pytest.fixture
def client(model, tokenizer, tmp_path):
    """A server whose store holds `ann:own`, and `ann:old` of the model before it was trained further."""
    before = copy.deepcopy(model)
    with torch.no_grad():
        before.model.norm.weight.add_(1)
    for maker, name in ((before, "ann:old"), (model, "ann:own")):
        MemoryStore(tmp_path, maker).put("local", name, maker.initial_state(1).detach(), expected=None)
    engine = Engine(model, tokenizer, max_batch=2, on_step=lambda rows, tokens: None)
    service = Service(engine, MemoryStore(tmp_path, model), WritePolicy("always"), None, 2)
    with TestClient(create_app(service, "tiny", None, Metrics(), Limits()), base_url="http://localhost") as client:
        yield client


def test_a_memory_of_another_model_is_refused_for_good(client):
    body = {"model": "tiny", "prompt": "x", "user": "ann", "memory": "old", "max_tokens": 2}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 422  # 408, 409, 429 and from 500 on, clients try again
    assert response.json()["error"]["code"] == "memory_of_another_model"
    assert "other weights" in response.json()["error"]["message"]
    assert client.post("/v1/memories/ann/old/fork", json={"to": "copy"}).status_code == 422
    assert client.post("/v1/completions", json={**body, "memory": "own"}).status_code == 200


def test_foreign_memories_are_marked_and_can_be_started_anew(client):
    listed = client.get("/v1/memories", params={"user": "ann"}).json()["data"]
    assert [(memory["memory"], memory["foreign"]) for memory in listed] == [("old", True), ("own", False)]
    assert client.get("/v1/memories/ann/old").json()["foreign"] is True
    assert client.post("/v1/memories/ann/old/reset").json()["foreign"] is False
    assert client.get("/v1/memories/ann/old").json()["foreign"] is False


def test_foreign_memories_are_counted_at_the_start(client, caplog):
    with caplog.at_level(logging.WARNING):
        client.app.state.service.count()
    assert "2 memories of 1 tenants, 0 of them damaged and 1 of another model: see titans memories" in caplog.text
    for _ in range(100):
        if (counted := client.get("/healthz").json()["memories_at_start"]) is not None:
            break
        time.sleep(0.02)
    assert counted == {"tenants": 1, "memories": 2, "foreign": 1, "damaged": 0}
