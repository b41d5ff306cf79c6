"""A model folder, and a way to run commands in this process."""

import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from titans import TitansConfig, TitansForCausalLM
from titans.cli import app
from titans.data import byte_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, byte_sizes):
    """An untrained byte-level model with its tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    config = TitansConfig(
        variant="mac",
        **byte_sizes,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
        initializer_range=0.5,
    )
    TitansForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def logged():
    """What a log file has of the parts that a command finished, without their results: `logged(result)`."""

    def logged(result):
        lines = [re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  (.+): .+", line) for line in result.stderr.splitlines()]
        return [line and line[1] for line in lines]

    return logged


@pytest.fixture
def titans():
    """Run a command; what goes wrong must come out as an exit status, never as an exception."""

    def run(*arguments, status=0):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def start_titans():
    """Start a command in a process of its own, which Ctrl-C interrupts even where these tests ignore it."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "titans.cli", *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()
