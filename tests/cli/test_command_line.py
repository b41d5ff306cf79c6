"""What the command line offered before the last redesign is there still, or the CHANGELOG says what became of it.

`command_line.json` holds the commands as they were, each with its arguments and options.
"""

import json
import re
from pathlib import Path

import pytest
import typer

from titans.cli import app

BEFORE = json.loads(Path(__file__).with_name("command_line.json").read_text(encoding="utf-8"))
CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
CHANGES = re.search(r"^### Command line\n(.*?)^### ", CHANGELOG, re.MULTILINE | re.DOTALL)[1]


def commands(command, name="titans"):
    """Each command's arguments and options."""
    yield name, [p.opts[0] if p.param_type_name == "option" else p.name for p in command.params]
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {part}")


NOW = dict(commands(typer.main.get_command(app)))
MOVED = dict(re.findall(r"^- `(titans [a-z ]+)` is `(titans [a-z ]+)`", CHANGES, re.MULTILINE))


@pytest.mark.parametrize("command", BEFORE)
def test_what_was_there_is_there_or_its_change_is_told(command):
    now = NOW.get(MOVED.get(command, command))
    assert now is not None, f"{command} is gone, and the CHANGELOG's list of the command line does not say so"
    for option in {*BEFORE[command]} - {*now}:
        assert re.search(rf"^- `{command} {option}` is ", CHANGES, re.MULTILINE), f"{command} {option} is gone"


def test_the_list_of_changes_is_true():
    for old, new in MOVED.items():
        assert old in BEFORE
        assert new in NOW
    for old, option, new in re.findall(r"^- `(titans [a-z ]+) (--[a-z-]+)` is `(--[a-z-]+)`", CHANGES, re.MULTILINE):
        assert option in BEFORE[old]
        assert option not in NOW[old]
        assert new in NOW[old]


@pytest.mark.parametrize("command", NOW)
def test_every_option_is_in_the_help(titans, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = titans(*command.split()[1:], "--help")
    assert result.exit_code == 0
    assert not [option for option in NOW[command] if option.startswith("--") and option not in result.output]
