"""A tiny model served: in this process, and as a command of its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import torch

from titans import TitansConfig, TitansForCausalLM
from titans.data import byte_tokenizer

SPECIAL = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}


def make_model(variant, scrambled, byte_sizes):
    torch.manual_seed(0)
    config = TitansConfig(variant=variant, **byte_sizes, **SPECIAL, tie_word_embeddings=False)
    model = scrambled(TitansForCausalLM(config), dtype=torch.float32, scale=0.4)
    with torch.no_grad():
        model.lm_head.weight.mul_(3)  # clear preferences, so that a greedy choice is never a tie
        model.lm_head.weight[:32] = model.lm_head.weight[127:] = 0  # what it says is text, and can be sent
    return model


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session", params=["lmm", "mac", "mag", "mal"])
def any_model(request, scrambled, byte_sizes):
    return make_model(request.param, scrambled, byte_sizes)


@pytest.fixture(scope="session")
def model(scrambled, byte_sizes):
    return make_model("mac", scrambled, byte_sizes)


@pytest.fixture(scope="session")
def model_folder(model, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Server:
    """`titans serve` in a process of its own."""

    def __init__(self, folder, memories, *options, background=False):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        self.log = Path(f"{memories}.log")
        command = [sys.executable, "-m", "titans.cli", "serve", str(folder), "--memories", str(memories), "--port", "0"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, *map(str, options)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if background else signal.SIG_DFL),
            )
        line = self.process.stdout.readline()
        assert " at http" in line, line
        self.url = line.split(" at ")[1].strip()
        self.http = httpx.Client(base_url=self.url, timeout=60)
        for _ in range(200):
            try:
                if self.http.get("/healthz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError("the server did not come up")

    def stop(self, signal="terminate"):
        getattr(self.process, signal)()
        status = self.process.wait(30)
        self.process.stdout.close()
        self.http.close()
        return status


@pytest.fixture(scope="session")
def start_server(model_folder):
    """Start a server: `start_server(memories, *options)`; in the background, it ignores Ctrl-C."""
    return lambda memories, *options, **how: Server(model_folder, memories, *options, **how)


@pytest.fixture
def serve(start_server, tmp_path):
    """Start servers that keep the same memories: `serve(*options)`; those still running are killed at the end."""
    servers = []

    def serve(*options, **how):
        servers.append(start_server(tmp_path / "memories", *options, **how))
        return servers[-1]

    yield serve
    for server in servers:
        server.stop("kill")
