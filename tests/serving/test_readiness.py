"""A store that is full, read-only or gone is told before it is needed, counted, and said to whose turn is not kept."""

import asyncio
import errno
import shutil

import pytest

from tests.serving.conftest import GREEDY
from titans.io import atomic
from titans.persistence import MemoryStore
from titans.serving import readiness
from titans.serving.errors import ApiError

TURN = {"json": {**GREEDY, "prompt": "hello", "memory": "a"}}


@pytest.fixture
def impatient(monkeypatch):
    """Have the store tried whenever it is asked for."""
    monkeypatch.setattr(readiness, "FRESH_SECONDS", 0)


def number(client, name):
    found = [line for line in client.request("GET", "/metrics").text.splitlines() if line.startswith(name + " ")]
    return float(found[0].split()[-1]) if found else 0.0


def break_store(monkeypatch, code):
    def create(path, data):
        raise OSError(code, "as the system says")

    monkeypatch.setattr(atomic, "create", create)


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [(errno.ENOSPC, "full", 507), (errno.EROFS, "read-only", 503), (errno.EIO, "failed", 503)],
)
def test_a_store_that_cannot_be_written(client, monkeypatch, impatient, code, kind, status):
    client.request("POST", "/v1/completions", **TURN)
    assert client.request("GET", "/readyz").json() == {"status": "ok"}
    break_store(monkeypatch, code)
    assert client.error("GET", "/readyz", status)["code"] == "store_failed"
    client.request("GET", "/healthz")  # starting again would not help
    told = client.error("POST", "/v1/completions", status, **TURN)
    assert "the memory was not saved and is as it was before this request: the store " in told["message"]
    assert "(as the system says)" in told["message"]
    streamed = client.request("POST", "/v1/completions", json={**TURN["json"], "stream": True}).text
    assert "the memory was not saved" in streamed
    client.error("POST", "/v1/memories/default/a/reset", status)
    assert client.request("POST", "/v1/completions", json={**GREEDY, "prompt": "x"}).status_code == 200
    assert number(client, f'titans_store_errors_total{{kind="{kind}"}}') == 4
    monkeypatch.undo()
    client.request("GET", "/readyz")
    assert client.request("POST", "/v1/completions", **TURN).json()["memory"]["version"] == 2


def test_a_store_that_was_deleted(client, impatient, tmp_path):
    client.request("POST", "/v1/completions", **TURN)
    shutil.rmtree(tmp_path / "memories")
    assert "gone" in client.error("GET", "/readyz", 503)["message"]
    assert "the store is gone" in client.error("POST", "/v1/completions", 503, **TURN)["message"]
    assert number(client, 'titans_store_errors_total{kind="gone"}') == 2


def test_it_is_tried_every_few_seconds_and_not_waited_for(monkeypatch):
    tried = []

    async def asked():
        async def attempt():
            tried.append(1)
            await asyncio.sleep(0.01 * len(tried))

        ready = readiness.Readiness(attempt)
        await asyncio.gather(*(ready.check() for _ in range(5)))
        assert len(tried) == 1
        monkeypatch.setattr(readiness, "PATIENCE_SECONDS", 0.001)
        ready.until = 0.0
        with pytest.raises(ApiError, match="did not answer within"):
            await ready.check()

    asyncio.run(asked())


def test_a_damaged_memory_is_listed_counted_and_can_be_reset(client, model, tmp_path):
    client.request("POST", "/v1/completions", **TURN)
    client.text("hello", memory="b")
    (file,) = [f for f in (tmp_path / "memories").rglob("*.safetensors") if "a=" in f.parent.name]
    file.write_bytes(b"\xff" * 20)
    client.app.state.service.store = MemoryStore(tmp_path / "memories", model)  # which remembers nothing
    listed = client.request("GET", "/v1/memories").json()["data"]
    assert [(m["memory"], m["damaged"]) for m in listed] == [("a", True), ("b", False)]
    assert (listed[0]["created"], listed[0]["version"], listed[0]["bytes"]) == (None, 1, 20)
    asked = [("GET", "", {}), ("GET", "/export", {}), ("POST", "/fork", {"json": {"to": "c"}})]
    for method, path, options in asked:
        error = client.error(method, f"/v1/memories/default/a{path}", 500, **options)
        assert error["code"] == "memory_damaged"
    assert number(client, 'titans_store_errors_total{kind="damaged"}') == 3
    again = client.request("POST", "/v1/memories/default/a/reset").json()
    assert (again["damaged"], again["version"], again["tokens"]) == (False, 2, 0)
    client.request("POST", "/v1/completions", **TURN)


def test_what_the_memories_do_is_counted(client):
    told = client.complete("hello", memory="a")["memory"]
    never = client.complete("hello", memory="a", write="never")["memory"]
    counted = {what: number(client, f'titans_memory_tokens_total{{what="{what}"}}') for what in ("written", "skipped")}
    assert counted == {"written": told["written"], "skipped": never["skipped"]}
    assert told["written"] > 0 < never["skipped"]
    assert number(client, "titans_memory_norm_count") == 2
    assert number(client, "titans_memory_norm_sum") == pytest.approx(told["norm"] + never["norm"])
    assert number(client, 'titans_store_seconds_count{call="put"}') == 2


def test_surprise_is_that_of_the_trace(client):
    """The first forward pass is watched, which reads the prompt."""
    traced = client.complete("hello", trace=True)["trace"]
    prompt = [token["surprise"] for token in traced if not token["generated"]]
    assert number(client, "titans_surprise_count") == 1
    assert number(client, "titans_surprise_sum") == pytest.approx(sum(prompt) / len(prompt))
