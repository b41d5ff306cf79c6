"""A request that is sent again changes nothing: by its `Idempotency-Key`, or by the version that it expects."""

import asyncio
import contextlib
import json
import sys

import httpx
import pytest

from tests.serving.conftest import GREEDY
from titans.serving import idempotency
from titans.serving.errors import ApiError
from titans.serving.idempotency import Recording
from titans.serving.protocol import Finished
from titans.serving.responses import COMPLETION, Reply

CHAT = "/v1/chat/completions"
TURN = {**GREEDY, "messages": [{"role": "user", "content": "hello"}], "memory": "notes"}


def keyed(key, **fields):
    return {"json": {**TURN, **fields}, "headers": {"Idempotency-Key": key}}


def version(client):
    return client.request("GET", "/v1/memories/default/notes").json()["version"]


def test_a_retry_gets_the_same_answer_and_changes_nothing(client):
    first = client.request("POST", CHAT, **keyed("one")).json()
    assert client.request("POST", CHAT, **keyed("one")).json() == first
    assert version(client) == first["memory"]["version"] == 1
    other = client.request("POST", CHAT, **keyed("two")).json()
    assert (other["memory"]["version"], version(client)) == (2, 2)
    assert client.request("POST", CHAT, **keyed("one")).json() == first


@pytest.mark.parametrize("stream", [False, True])
def test_retries_while_the_first_still_runs_wait_for_it(client, stream):
    answers = client.gather(*[("POST", CHAT, keyed("one", stream=stream, trace=True))] * 4)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert version(client) == 1
    assert client.request("POST", CHAT, **keyed("one", stream=stream, trace=True)).text == answers[0].text


def leave(app, key):
    """Send the turn and leave as soon as it is sent."""
    body = json.dumps(TURN).encode()
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("localhost", 80),
        "headers": [
            (b"host", b"localhost"), (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()), *([(b"idempotency-key", key)] if key else []),
        ],
    }  # fmt: skip
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message):
        pass

    return app(scope, receive, send)


def test_a_client_that_leaves_finds_its_answer_when_it_comes_again(client):
    async def left():
        task = asyncio.create_task(leave(client.app, b"one"))
        await asyncio.sleep(0.01)
        task.cancel()  # as the server does with a request whose connection is gone
        with contextlib.suppress(asyncio.CancelledError):
            await task

    client.loop.run_until_complete(left())
    answer = client.request("POST", CHAT, **keyed("one")).json()
    assert (answer["memory"]["version"], version(client)) == (1, 1)
    assert answer["usage"]["completion_tokens"] == 8


def test_another_request_under_the_same_key_is_refused(make_client):
    client = make_client(keys={"key-of-alice-0123456": "alice", "key-of-bob-012345678": "bob"})
    alice, bob = ({"Authorization": f"Bearer key-of-{k}"} for k in ("alice-0123456", "bob-012345678"))

    def ask(who, status, **fields):
        headers = {**who, "Idempotency-Key": "one"}
        return client.request("POST", CHAT, status, json={**TURN, **fields}, headers=headers).json()

    first = ask(alice, 200)
    assert ask(alice, 422, memory="other")["error"]["code"] == "idempotency_key_reused"
    assert ask(bob, 200)["id"] != first["id"]


def test_what_failed_is_done_anew(client):
    wrong = client.error("POST", CHAT, 400, **keyed("one", write="gated"))
    assert wrong["code"] == "not_calibrated"
    client.error("POST", CHAT, 400, **keyed("one", write="gated"))
    client.request("POST", CHAT, **keyed("one"))
    assert version(client) == 1


def test_answers_are_kept_for_a_time_and_up_to_a_size(client, monkeypatch):
    one = client.request("POST", CHAT, **keyed("one")).json()
    monkeypatch.setattr(idempotency, "KEPT_BYTES", 1)  # the newest is kept whatever its size
    two = client.request("POST", CHAT, **keyed("two")).json()
    assert client.request("POST", CHAT, **keyed("two")).json() == two
    assert client.request("POST", CHAT, **keyed("one")).json()["id"] != one["id"]
    monkeypatch.setattr(idempotency, "KEPT_SECONDS", 0)
    assert client.request("POST", CHAT, **keyed("two")).json()["id"] != two["id"]


async def nothing(after=None, error=None):
    """An answer without text."""
    if after:
        await after.wait()
    yield Finished("stop", 1, 0, None)
    if error:
        raise error


async def recorded(kept, count, error=None):
    """Record requests one after the other."""
    for i in range(count):
        assert kept.find("local", f"key {i}", "mark") is None
        recording = kept.record("local", f"key {i}", "mark", Reply(COMPLETION, "tiny"), nothing(error=error))
        with contextlib.suppress(ApiError):
            assert [event.reason async for event in recording.replay()] == ["stop"]


def test_answers_of_nothing_are_of_a_size_and_measured_once(monkeypatch):
    measured = []
    size = Recording.size
    monkeypatch.setattr(Recording, "size", lambda self: measured.append(self) or size(self))
    monkeypatch.setattr(idempotency, "KEPT_BYTES", 100 * 4096 + 1)
    kept = idempotency.IdempotentRequests()
    asyncio.run(recorded(kept, 1000))
    found = [i for i in range(1000) if kept.find("local", f"key {i}", "mark")]
    assert found == list(range(900, 1000))  # the newest
    assert len(measured) == len(set(measured)) == 1000
    assert kept.kept["local"].bytes == 100 * 4096


def test_failures_are_not_kept():
    kept = idempotency.IdempotentRequests()
    asyncio.run(recorded(kept, 10, ApiError(429, "later")))
    assert not kept.kept["local"].ended
    assert kept.kept["local"].bytes == 0


def test_what_runs_is_not_forgotten(monkeypatch):
    monkeypatch.setattr(idempotency, "KEPT_BYTES", 1)

    async def run():
        kept, go = idempotency.IdempotentRequests(), asyncio.Event()
        slow = kept.record("local", "slow", "mark", Reply(COMPLETION, "tiny"), nothing(go))
        await recorded(kept, 3)
        assert [kept.find("local", key, "mark") is not None for key in ("slow", "key 1", "key 2")] == [
            True,
            False,
            True,
        ]
        go.set()
        assert [event.reason async for event in slow.replay()] == ["stop"]
        assert [kept.find("local", key, "mark") for key in ("slow", "key 2")] == [slow, None]  # the last to end

    asyncio.run(run())


def test_looking_costs_the_same_however_many_are_kept():
    """Counted in lines that run."""

    def lines(count):
        kept, ran = idempotency.IdempotentRequests(), []
        asyncio.run(recorded(kept, count))
        before = sys.gettrace()

        def trace(frame, event, argument):
            ran.append(event)
            return trace

        sys.settrace(trace)
        try:
            kept.find("local", "new", "mark")
        finally:
            sys.settrace(before)
        return len(ran)

    assert lines(10) == lines(1000) > 0


@pytest.mark.parametrize("expected", ["0", '"0"'])
def test_a_version_that_is_expected(client, expected):
    """Holds after a restart and between servers, too: the version is in the store."""
    first = {"json": TURN, "headers": {"If-Match": expected}}
    assert client.request("POST", CHAT, **first).json()["memory"]["version"] == 1
    refused = client.error("POST", CHAT, 412, **first)
    assert (refused["code"], refused["param"]) == ("memory_version", "If-Match")
    assert "at version 1 and not 0" in refused["message"]
    assert version(client) == 1
    for method, path, body in [
        ("POST", "reset", {}),
        ("POST", "fork", {"json": {"to": "b"}}),
        ("PUT", "import", {"content": b"x"}),
        ("DELETE", "", {}),
    ]:
        url = f"/v1/memories/default/notes/{path}".rstrip("/")
        client.error(method, url, 412, headers={"If-Match": "7"}, **body)
    client.request("POST", "/v1/memories/default/notes/reset", headers={"If-Match": "1"})
    assert version(client) == 2


def test_a_version_is_a_number_of_a_memory(client):
    nameless = {**TURN, "memory": None}
    assert client.error("POST", CHAT, 400, json=nameless, headers={"If-Match": "1"})["param"] == "If-Match"
    for wrong in ("*", "new", '"-1"', 'W/"7"', '"7', "9" * 17, str(1 << 53), b"\xb2", '"1", "2"', ""):
        error = client.error("POST", CHAT, 400, json=TURN, headers={"If-Match": wrong})
        assert error["param"] == "If-Match"
        assert error["message"].endswith(': expected a version number in quotes, such as "7"')
    error = client.error("POST", CHAT, 400, **keyed("x" * 256))
    assert error["message"] == "Idempotency-Key: String should have at most 255 characters"
    assert error["param"] == "Idempotency-Key"


class Impatient(httpx.AsyncBaseTransport):
    """A connection whose client gives up twice before the answer comes."""

    def __init__(self, app):
        self.inner, self.sent = httpx.ASGITransport(app), 0

    async def handle_async_request(self, request):
        self.sent += 1
        response = await self.inner.handle_async_request(request)
        if self.sent <= 2:
            raise httpx.ReadTimeout("too slow", request=request)
        return response


@pytest.mark.parametrize("safe", [True, False])
def test_the_official_client_writes_a_turn_once(client, safe, monkeypatch):
    """Its retries send the headers of the first attempt; without a key, three attempts are three turns."""
    openai = pytest.importorskip("openai", reason="the OpenAI client is not installed")
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.01)

    async def ask():
        transport = Impatient(client.app)
        http = httpx.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http) as official:
            answer = await official.chat.completions.create(
                model="tiny",
                messages=TURN["messages"],
                max_tokens=8,
                extra_body={"memory": "notes"},
                extra_headers={"Idempotency-Key": "turn-1"} if safe else {},
            )
            return transport.sent, answer.memory["version"]

    assert client.loop.run_until_complete(ask()) == (3, 1 if safe else 3)
    assert version(client) == (1 if safe else 3)
