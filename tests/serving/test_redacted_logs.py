"""The log names no user and no memory unless it is asked to."""

import errno
import io
import json
import logging

import pytest

from tests.serving.conftest import GREEDY
from titans.io import atomic
from titans.persistence import MemoryStore
from titans.serving import logs
from titans.serving.logs import hashed_name, redact

TURN = {**GREEDY, "prompt": "x", "user": "Ann.Smith@example.org", "memory": "diary"}
NAME = "Ann.Smith@example.org:diary"


@pytest.fixture
def lines():
    """What is logged from here on: `lines()`, without names or with them: `lines(True)`."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    root = logging.getLogger("titans")  # not that of the tests' own client
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield lambda names=False: [logs.JsonFormatter(names).format(record) for record in records]
    root.removeHandler(handler)
    root.setLevel(level)


def named(lines):
    return [line for line in lines if "smith" in line.lower() or "diary" in line.lower()]


def provoke(client, model, tmp_path, monkeypatch):
    """Make the server log errors: of a damaged file, of a mistake of ours, of a disk."""
    client.request("POST", "/v1/completions", json=TURN)
    (file,) = (tmp_path / "memories").rglob("*.safetensors")
    data = file.read_bytes()
    file.write_bytes(data[:-5])
    client.app.state.service.store = MemoryStore(tmp_path / "memories", model)
    client.error("POST", "/v1/completions", 500, json=TURN)
    client.error("GET", "/v1/memories/Ann.Smith@example.org/nothing", 404)
    monkeypatch.setattr(atomic, "read", lambda path, start=0, end=None: {}[str(path)])
    client.error("POST", "/v1/completions", 500, json=TURN)
    client.error("GET", "/v1/memories/Ann.Smith@example.org/diary", 500)
    monkeypatch.undo()
    file.write_bytes(data)

    def full(path, data):
        raise OSError(errno.ENOSPC, "no room", str(path))

    monkeypatch.setattr(atomic, "create", full)
    client.error("POST", "/v1/completions", 507, json=TURN)


def test_no_user_is_named(client, model, tmp_path, monkeypatch, lines):
    provoke(client, model, tmp_path, monkeypatch)
    told = lines()
    assert sum('"level": "error"' in line for line in told) >= 3
    assert named(told) == []
    assert sum(hashed_name(NAME) in line for line in told) >= 3  # still told apart
    assert len(named(lines(True))) >= 3  # as --log-names writes them


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("the memory 'ann:notes' of 'acme': damaged", "ann:notes"),
        ("KeyError: ('acme', 'ann:notes')", "ann:notes"),
        ("No such file: '/srv/acme=0/ann;notes=1/000000000001.safetensors'", "Ann:notes"),
        ("/srv/x@y,org;a,b=0 is a link", "x@y.org:a.b"),
    ],
)
def test_a_memory_is_the_same_wherever_it_is_named(text, memory):
    assert hashed_name(memory) in redact(text)
    assert memory.split(":")[1] not in redact(text)


@pytest.mark.parametrize("text", ["see http://localhost:8000", "File 'x.py', line 3: a = 'b'", "x=0; y=1", "cuda:0"])
def test_other_text_stays(text):
    assert redact(text) == text


def test_the_option(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    for names in (False, True):
        logs.log_as_json(names)
        logging.getLogger("titans").error("the memory 'ann:notes'")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        f"the memory {hashed_name('ann:notes')}",
        "the memory 'ann:notes'",
    ]
