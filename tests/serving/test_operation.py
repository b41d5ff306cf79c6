"""What an operator does to a running server, and what strangers do."""

import contextlib
import json
import logging
import shutil
import signal
import socket

import httpx
import pytest
from typer.testing import CliRunner

from tests.waiting import until
from titans.cli import app
from titans.models.write_policy import WritePolicy
from titans.persistence import MemoryStore
from titans.serving.access import Keys

ALICE, BOB = {"Authorization": "Bearer key-of-alice-0123456"}, {"Authorization": "Bearer key-of-bob-012345678"}
BODY = {"model": "tiny", "temperature": 0, "max_tokens": 8, "prompt": "hello", "memory": "work"}


def write_keys(path, *names):
    known = {"alice": "key-of-alice-0123456", "bob": "key-of-bob-012345678"}
    path.write_text(json.dumps({known[name]: name for name in names}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operated")
    write_keys(folder / "keys.json", "alice")
    return folder


@pytest.fixture(scope="module")
def server(start_server, folder):
    server = start_server(folder / "memories", "--keys", folder / "keys.json", descriptors=256)
    yield server
    server.stop("kill")


def complete(server, headers=ALICE, **fields):
    return server.http.post("/v1/completions", json={**BODY, **fields}, headers=headers)


@pytest.mark.slow
def test_many_idle_connections_of_strangers_keep_nobody_out(server):
    port = httpx.URL(server.url).port
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
    with httpx.Client(base_url=server.url, timeout=60) as newcomer:
        assert newcomer.post("/v1/completions", json=BODY, headers=ALICE).status_code == 200
        assert newcomer.get("/healthz").status_code == 200
    assert complete(server).status_code == 200
    for stranger in strangers:
        stranger.close()
    log = server.log.read_text()
    assert "all 128 connections are taken" in log
    assert len(log) < 50_000
    assert "Traceback" not in log


def test_sighup_reads_the_keys_again_and_ends_no_answer(server, folder):
    write_keys(folder / "keys.json", "bob")
    with server.http.stream(
        "POST", "/v1/completions", json={**BODY, "stream": True, "max_tokens": 40}, headers=ALICE
    ) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        server.process.send_signal(signal.SIGHUP)
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    until(lambda: complete(server, BOB).status_code == 200)
    assert complete(server, ALICE).status_code == 401
    (folder / "keys.json").write_text("{")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: "the keys stay as they are" in server.log.read_text())
    assert complete(server, BOB).status_code == 200


def test_a_second_ctrl_c_cuts_answers_and_leaves_memories_whole(server, folder, model):
    write_keys(folder / "keys.json", "bob")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: complete(server, BOB).status_code == 200)
    before = complete(server, BOB).json()["memory"]
    asked = {"json": {**BODY, "stream": True, "max_tokens": 4000}, "headers": BOB}
    with contextlib.suppress(httpx.TransportError), server.http.stream("POST", "/v1/completions", **asked) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGINT)
        until(lambda: "Shutting down" in server.log.read_text())
        server.process.send_signal(signal.SIGINT)
        list(lines)
    assert server.process.wait(30) == 130
    assert "Traceback" not in server.log.read_text()
    stored = MemoryStore(folder / "memories", model).get("bob", "default:work")
    assert stored.version == before["version"] + 1
    assert before["tokens"] + 5 < stored.state.tokens < before["tokens"] + 4000


@pytest.mark.slow
def test_stopping_takes_no_longer_than_allowed_and_saves(start_server, tmp_path, model):
    """Also an answer that goes on without its client, for its retry."""
    server = start_server(tmp_path / "memories", "--stop-seconds", 1)
    body = {**BODY, "stream": True, "max_tokens": 4000}
    stream = {"json": {**body, "memory": "left"}, "headers": {"Idempotency-Key": "one"}}
    with server.http.stream("POST", "/v1/completions", **stream) as response:
        next(response.iter_lines())
    with (
        contextlib.suppress(httpx.TransportError),
        server.http.stream("POST", "/v1/completions", json={**body, "memory": "heard"}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.process.terminate()
        list(lines)
    assert server.process.wait(30) == 0
    server.stop()
    store = MemoryStore(tmp_path / "memories", model)
    for name in ("left", "heard"):
        assert 6 < store.get("local", f"default:{name}").state.tokens < 4000


def test_keys_are_replaced_whole(tmp_path, caplog):
    write_keys(tmp_path / "keys.json", "alice")
    keys = Keys.load(tmp_path / "keys.json")
    write_keys(tmp_path / "keys.json", "bob")
    assert (keys.tenant("key-of-alice-0123456"), keys.tenant("key-of-bob-012345678")) == ("alice", None)
    keys.reload()
    assert (keys.tenant("key-of-alice-0123456"), keys.tenant("key-of-bob-012345678")) == (None, "bob")
    (tmp_path / "keys.json").unlink()
    with caplog.at_level(logging.ERROR):
        keys.reload()
    assert "the keys stay as they are" in caplog.text
    assert keys.tenant("key-of-bob-012345678") == "bob"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("HOST", "0.0.0.0", "without API keys"),
        ("WRITE", "often", "choose one of always"),
        ("PORT", "x", "port"),
        ("STOP_SECONDS", "-1", "stop-seconds"),
    ],
)
def test_options_are_taken_from_the_environment(model_folder, name, value, sentence):
    result = CliRunner().invoke(app, ["serve", str(model_folder)], env={f"TITANS_SERVE_{name}": value})
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_gated_writing_is_not_forbidden_and_the_default(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "calibrated")
    WritePolicy("gated", *[(1.0,) * 2] * 3).save(folder)
    result = CliRunner().invoke(app, ["serve", str(folder), "--no-gated", "--write", "gated"])
    assert result.exit_code == 2
    assert "--no-gated" in result.stderr
