"""A tiny model served: in this process, and as a command of its own."""

import asyncio
import logging
import os
import resource
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
from titans.models.write_policy import WritePolicy
from titans.persistence import MemoryStore
from titans.serving.access import Keys
from titans.serving.app import Limits, create_app
from titans.serving.engine import Engine
from titans.serving.metrics import Metrics
from titans.serving.service import Service

GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 8}
DEFAULT, ALWAYS = Limits(), WritePolicy("always")
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


@pytest.fixture(autouse=True)
def no_handlers_left():
    """What `titans serve` sets up for its log in this process ends with the test; its stream does, too."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in before]
    root.setLevel(level)


class Client:
    """Talks to an application in this process."""

    def __init__(self, app):
        self.app = app

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.lifespan = self.app.router.lifespan_context(self.app)
        self.loop.run_until_complete(self.lifespan.__aenter__())
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)
        return self

    def __exit__(self, *_):
        self.loop.run_until_complete(self.http.aclose())
        self.loop.run_until_complete(self.lifespan.__aexit__(None, None, None))
        self.loop.close()

    def gather(self, *requests):
        """Send requests at once; each is `(method, url, options)`."""

        async def together():
            return await asyncio.gather(*(self.http.request(m, u, **o) for m, u, o in requests))

        return self.loop.run_until_complete(together())

    def request(self, method, url, status=200, **options):
        response = self.gather((method, url, options))[0]
        assert response.status_code == status, response.text
        return response

    def complete(self, prompt, status=200, **fields):
        return self.request("POST", "/v1/completions", status, json={**GREEDY, "prompt": prompt, **fields}).json()

    def text(self, prompt, **fields):
        return self.complete(prompt, **fields)["choices"][0]["text"]

    def error(self, *arguments, **options):
        return self.request(*arguments, **options).json()["error"]


@pytest.fixture
def make_client(model, tokenizer, tmp_path):
    clients = []

    def make_client(limits=DEFAULT, keys=None, max_batch=32, max_queue=64, policy=ALWAYS, **options):
        metrics = Metrics()
        engine = Engine(
            model, tokenizer, max_batch=max_batch, on_step=metrics.step, on_surprise=metrics.surprise.observe
        )
        store = MemoryStore(tmp_path / "memories", model)
        service = Service(engine, store, policy, None, max_queue, metrics=metrics, **options)
        known = None if keys is None else Keys(keys)
        clients.append(Client(create_app(service, "tiny", known, metrics, limits)).__enter__())
        return clients[-1]

    yield make_client
    for client in clients:
        client.__exit__()


@pytest.fixture
def client(make_client):
    return make_client()


def prepare(background, descriptors):
    """Set up the process of a server before it starts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN if background else signal.SIG_DFL)
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))


class Server:
    """`titans serve` in a process of its own."""

    def __init__(self, folder, memories, *options, background=False, descriptors=None):
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
                preexec_fn=lambda: prepare(background, descriptors),
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
    """Start a server: `start_server(memories, *options)`; in the background, it ignores Ctrl-C.

    `descriptors` limits its descriptors.
    """
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
