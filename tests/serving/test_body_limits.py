"""Bodies that ask for more than their bytes: refused at once, with little memory."""

import asyncio
import functools
import json
import tracemalloc

import pytest

from tests.serving.conftest import GREEDY
from titans.serving import memories
from titans.serving.app import Limits
from titans.serving.body_limits import BodyLimits, holds_more

JSON = {"Content-Type": "application/json"}
SMALL = Limits(prompt_tokens=1000)  # 6,096 values
KIND = {"/v1/completions": "prompt", "/v1/chat/completions": "messages", "/v1/memories/default/a/fork": "to"}


def nested(sign, count):
    return sign * count + {"[": "]", '{"a":': "1" + "}"}[sign] * count


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[1,2,3]", 3), ('["a,b[{","c\\",[,"]', 2), ('"a,\\\\",1', 1), ("[[[]]]", 3), ('{"a":1,"b":[{}]}', 4),
        ("[,,,", 4), ('"' * 100, 0), ("", 0), ('[""' + ',""' * 49 + "]", 50),
    ],
)  # fmt: skip
def test_values_are_counted_outside_of_strings(text, values):
    assert not holds_more(text.encode(), max(values, 25))  # split at four quotes a value
    assert values == 0 or holds_more(text.encode(), values - 1)


@pytest.mark.parametrize("path", KIND)
@pytest.mark.parametrize("element", ["-1", "{}", "[]", "null", '""', '"\\ud800"', "[-1]", "1e999", "[[]]"])
def test_many_wrong_values_cost_one_error(make_client, path, element):
    """As many as the body may hold: the schema names the first of them."""
    client = make_client(SMALL)
    body = f'{{"model": "tiny", "{KIND[path]}": [{",".join([element] * 1000)}]}}'
    error = client.error("POST", path, 400, content=body.encode(), headers=JSON)
    assert len(error["message"]) < 200
    assert len(error["param"] or "") < 40


@pytest.mark.parametrize(
    "field", ["prompt", "messages", "stop", "stream_options", "memory", "tools", "seed", "unknown"]
)
def test_more_values_than_may_be_are_refused(make_client, field):
    client = make_client(SMALL)
    body = f'{{"model": "tiny", "prompt": "x", "{field}": [{",".join(["{}"] * 50_000)}]}}'
    for path in KIND:
        assert client.error("POST", path, 413, content=body.encode(), headers=JSON)["code"] == "body_too_large"


def test_a_state_file_whose_header_holds_too_many_values_is_refused(client):
    texts = b",".join([b'"a":""'] * 300_000), b'"config":"[' + b",".join([b"[]"] * 300_000) + b']"'
    for text in texts:  # the second is a JSON text in a string
        header = b'{"__metadata__":{' + text + b"}}"
        data = len(header).to_bytes(8, "little") + header
        assert client.error("PUT", "/v1/memories/default/a/import", 413, content=data)["code"] == "body_too_large"
    client.error("PUT", "/v1/memories/default/a/import", 400, content=b"\xff" * 8 + b"{}")  # longer than the file


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("path", KIND)
def test_a_text_that_is_not_utf_8_is_refused_before_it_is_parsed(make_client, path, encoding):
    """In UTF-16, the quote that a backslash takes away hides all that follows it from the count."""
    client = make_client(SMALL)
    hidden = f'{{"model": "tiny", "stop": "\\"", "{KIND[path]}": [{",".join(["[]"] * 10_000)}]}}'
    for body in (hidden, '{"to": "b"}', f'{{"model": "tiny", "{KIND[path]}": "x"}}'):
        error = client.error("POST", path, 400, content=body.encode(encoding), headers=JSON)
        assert error["code"] == "not_utf8"
        assert "UTF-8" in error["message"]


def test_a_byte_order_mark_of_utf_8_changes_nothing(make_client):
    client = make_client(SMALL)
    body = json.dumps({**GREEDY, "prompt": "hello"})
    said = [client.request("POST", "/v1/completions", content=c, headers=JSON).json()["choices"]
            for c in (body.encode(), body.encode("utf-8-sig"))]  # fmt: skip
    assert said[0] == said[1]
    many = f'{{"model": "tiny", "prompt": [{",".join(["[]"] * 10_000)}]}}'.encode("utf-8-sig")
    assert client.error("POST", "/v1/completions", 413, content=many, headers=JSON)["code"] == "body_too_large"


@pytest.mark.parametrize("body", ['{"prompt": ' + "[" * 900 + "]" * 900 + "}", "[" * 6000, '{"a":' * 3000, "9" * 9000])
@pytest.mark.parametrize("path", KIND)
def test_deep_and_long_values_are_wrong_values(make_client, body, path):
    make_client(SMALL).error("POST", path, 400, content=body.encode(), headers=JSON)


@pytest.mark.parametrize("part", [b"{},", b'"",', b'"', b"\\n", b'\\",', b"["])
def test_the_memory_stays_flat(part):
    body = b'["' + part * (400_000 // len(part))
    tracemalloc.start()
    holds_more(body, 26_000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 * len(body)


def test_a_text_with_many_commas_is_a_text(make_client):
    client = make_client(SMALL)
    text = '"a",[{' * 1500
    assert client.complete(text, 400)["error"]["code"] == "context_length_exceeded"
    assert client.complete([1] * 1001, 400)["error"]["code"] == "context_length_exceeded"


def test_a_body_that_drips_is_given_up():
    async def never(scope, receive, send):
        raise AssertionError("nothing came")

    async def drip():
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/v1/x", "headers": [(b"content-length", b"900")], "state": {"tenant": "local"}}
    bodies = BodyLimits(never, limit=1000, imports=1000, values=10, most=1, seconds=0.1)
    asyncio.run(asyncio.wait_for(bodies(scope, drip, send), 5))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 5000, "²", "", "1001"])
def test_a_length_that_is_none_is_refused(make_client, length):
    headers = {**JSON, "Content-Length": length.encode("latin-1")}
    client = make_client(Limits(body=1000))
    client.error("POST", "/v1/completions", 413, content=b"{}", headers=headers)


def test_a_tenant_takes_in_so_many_bodies_at_once_and_no_others_are_kept_waiting():
    started = []

    async def app(scope, receive, send):
        started.append(scope["state"]["tenant"])
        await asyncio.sleep(30)

    async def body():
        return {"type": "http.request", "body": b"{}"}

    async def run():
        bodies = BodyLimits(app, limit=1000, imports=1000, values=10, most=2, seconds=0.2)
        statuses = []

        async def send(message):
            statuses.append(message.get("status"))

        def request(tenant, path="/v1/x"):
            scope = {"type": "http", "path": path, "headers": [(b"content-length", b"2")], "state": {"tenant": tenant}}
            return asyncio.create_task(bodies(scope, body, send))

        tasks = [request("a"), request("a"), request("a"), request("b"), request("c", "/x/import")]
        tasks += [request("c", "/x/import"), request("d", "/x/import")]  # state files: one of each tenant
        tasks += [request("c", "/x/export"), request("e", "/x/export"), request("e", "/x/export")]
        tasks += [request("f", "/x/export"), request("g", "/x/export"), request("h", "/x/import")]  # and four in all
        await asyncio.sleep(0.05)
        assert statuses[0] == 429
        assert started == ["a", "a", "b", "c", "d", "e", "f"]
        await asyncio.sleep(0.3)
        assert statuses[2::2] == [429] * 5  # those that waited are told so
        assert started == ["a", "a", "b", "c", "d", "e", "f"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_an_export_is_in_memory_until_its_client_has_taken_it(client, monkeypatch):
    client.text("hello", memory="a")
    whole = client.request("GET", "/v1/memories/default/a/export")
    assert int(whole.headers["content-length"]) == len(whole.content) > 1000
    monkeypatch.setattr(memories, "PART_BYTES", 1000)
    store = client.app.state.service.store
    read, export = [], store.export
    monkeypatch.setattr(store, "export", functools.wraps(export)(lambda *names: read.append(1) or export(*names)))
    path = "/v1/memories/default/a/export"
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("localhost", 80),
        "headers": [(b"host", b"localhost")],
    }  # fmt: skip

    async def run():
        taken, got, stays = asyncio.Event(), [bytearray() for _ in range(4)], asyncio.Event()

        def ask(mine):
            async def send(message):
                mine.extend(message.get("body", b""))
                if mine:
                    await taken.wait()

            return asyncio.create_task(client.app({**scope, "headers": scope["headers"]}, stays.wait, send))

        tasks = [ask(mine) for mine in got]
        await asyncio.sleep(0.2)
        assert ([len(mine) for mine in got], len(read)) == ([1000, 0, 0, 0], 1)
        taken.set()
        await asyncio.gather(*tasks)
        assert [bytes(mine) for mine in got] == [whole.content] * 4

    client.loop.run_until_complete(run())
