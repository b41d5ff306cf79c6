"""The server's connections: idle ones are closed, and many take no place from a client that is let in."""

import asyncio
import contextlib
import logging

import pytest
import uvicorn
from uvicorn.server import ServerState

from titans.serving import connections
from titans.serving.connections import Connection
from titans.serving.logs import FewOfAKind

HEAD = b"GET /v1/x HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answers(scope, receive, send):
    """What needs a key is under /v1/; /large is more than a connection holds, /slow never ends."""
    if scope["path"].startswith("/v1/"):
        scope["state"]["tenant"] = "local"
    if scope["path"] == "/v1/slow":
        await asyncio.sleep(60)
    body = b"x" * (1 << 24 if scope["path"] == "/large" else 1)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def talk(conversation, keep_alive=60, **limits):
    """Run `conversation(connect)` against a server; `connect()` opens a connection."""

    async def run():
        kind = type("Limited", (Connection,), limits)
        config = uvicorn.Config(answers, lifespan="off", log_config=None, timeout_keep_alive=keep_alive)
        config.load()
        state, loop = ServerState(), asyncio.get_running_loop()
        server = await loop.create_server(lambda: kind(config, state, {}, loop), "127.0.0.1", 0)
        writers = []

        async def connect(said=b""):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writers.append(writer)
            writer.write(said)
            return reader, writer

        try:
            async with asyncio.timeout(20):
                await conversation(connect)
        finally:
            server.close()
            for open_one in [*writers, *state.connections]:
                open_one.transport.abort()
            for task in state.tasks:
                task.cancel()
            await asyncio.sleep(0)

    asyncio.run(run())


async def closed(reader):
    with contextlib.suppress(ConnectionError):
        return await reader.read() == b""
    return True


async def answered(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return head.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("said", [b"", b"G", HEAD[:-2]])
def test_a_connection_without_a_whole_head_is_closed(said):
    async def conversation(connect):
        reader, _ = await connect(said)
        assert await closed(reader)

    talk(conversation, head_seconds=0.05)


def test_a_head_that_drips_is_closed_also_after_an_answer():
    async def conversation(connect):
        reader, writer = await connect(HEAD)
        assert await answered(reader)
        dripped = 0
        while not reader.at_eof() and dripped < 1000:
            writer.write(b"G")
            dripped += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closed(reader), 0.02)
                break
        assert dripped < 1000

    talk(conversation, head_seconds=0.1)


def test_a_request_at_work_is_no_idle_connection():
    async def conversation(connect):
        busy, _ = await connect(HEAD.replace(b"/v1/x", b"/v1/slow"))
        idle, _ = await connect()
        assert await closed(idle)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(busy.read(1), 0.1)

    talk(conversation, head_seconds=0.05)


def test_the_keep_alive_time_closes():
    async def conversation(connect):
        reader, _ = await connect(HEAD)
        assert await answered(reader)
        assert await closed(reader)

    talk(conversation, keep_alive=0.05)


def test_who_takes_in_nothing_is_given_up():
    async def conversation(connect):
        reader, _ = await connect(HEAD.replace(b"/v1/x", b"/large"))
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1 << 24)

    talk(conversation, stall_seconds=0.1)


def test_a_client_takes_no_more_than_its_turn():
    """One that sends chunks of a byte, which take long for their bytes, keeps others waiting for few of them."""
    taken = []

    def data_received(self, data):
        taken.append(len(data))
        Connection.data_received(self, data)

    async def conversation(connect):
        head = HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        reader, _ = await connect(head + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n" + HEAD)
        assert await answered(reader)
        assert await answered(reader)

    talk(conversation, data_received=data_received)
    assert sum(taken) > 120_000
    assert max(taken) <= 1 << 14


def test_the_first_to_be_closed_is_the_stranger_who_is_silent_for_longest(caplog):
    async def conversation(connect):
        known, writer = await connect(HEAD)
        assert await answered(known)
        strangers = [(await connect())[0] for _ in range(3)]
        for _ in range(10):  # each takes the place of the one that has waited for longest
            reader, _ = await connect(HEAD)
            assert await answered(reader)
        for stranger in strangers:
            assert await closed(stranger)
        strangers = [(await connect())[0] for _ in range(30)]
        assert await closed(strangers[0])
        reader, _ = await connect(HEAD)
        assert await answered(reader)
        del writer

    with caplog.at_level(logging.WARNING):
        talk(conversation, most=4)
    assert "all 4 connections are taken" in caplog.text


def test_a_client_that_was_let_in_outlives_any_number_of_strangers():
    async def conversation(connect):
        known, writer = await connect(HEAD)
        assert await answered(known)
        for _ in range(20):
            await connect()
        writer.write(HEAD)
        assert await answered(known)

    talk(conversation, most=4)


def test_where_all_are_at_work_a_new_one_is_closed():
    async def conversation(connect):
        for _ in range(3):
            await connect(HEAD.replace(b"/v1/x", b"/v1/slow"))
        await asyncio.sleep(0.1)
        reader, _ = await connect(HEAD)
        assert await closed(reader)

    talk(conversation, most=3)


@pytest.mark.parametrize(
    ("allowed", "most"), [(1024, 768), (256, 128), (-1, (1 << 16) - 256), (1 << 20, (1 << 20) - 256)]
)
def test_descriptors_are_left_for_other_things(monkeypatch, allowed, most):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert connections.most_connections() == most


def test_the_log_holds_few_lines_of_a_kind():
    now = 0.0
    few = FewOfAKind(most=3, clock=lambda: now)

    def passes(message="m", **fields):
        record = logging.makeLogRecord({"name": "n", "msg": message, "fields": fields})
        return few.filter(record), getattr(record, "fields", {}).get("others")

    assert [passes(status=401, tenant=None) for _ in range(5)] == [
        (True, None), (True, None), (True, "left out for 60 s"), (False, None), (False, None)
    ]  # fmt: skip
    assert all(passes(tenant="alice")[0] for _ in range(9))  # its use of the server is always told
    assert passes("other") == (True, None)
    now = 61.0
    assert passes() == (True, None)
