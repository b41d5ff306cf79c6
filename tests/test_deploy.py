"""The files in deploy/ start a command that there is."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from titans.cli import app

DEPLOY = Path(__file__).parents[1] / "deploy"


def started(name):
    """The arguments of `titans` in a file."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    if name == "Dockerfile":
        assert json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1]) == ["titans"]
        return json.loads(re.search(r"^CMD (\[\"serve.*)$", text, re.MULTILINE)[1])
    return shlex.split(re.search(r"^ExecStart=\S*/titans (.*)$", text, re.MULTILINE)[1])


@pytest.mark.parametrize("name", ["Dockerfile", "titans.service"])
def test_what_is_started_parses(name):
    command, *words = started(name)
    options = typer.main.get_command(app).commands[command].make_context(command, words).params
    assert command == "serve"
    assert options["keys"].name == "keys.json"
    if name == "titans.service":
        unit = (DEPLOY / name).read_text(encoding="utf-8")
        assert options["stop_seconds"] < int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1])
