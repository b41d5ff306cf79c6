"""`python benchmarks/serving.py MODEL`: what a server bears: clients, memories, batches."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from matplotlib.figure import Figure
from rich.console import Console

from titans import plots

THREADS = 2
ENVIRONMENT = {"OMP_NUM_THREADS": str(THREADS), "OMP_WAIT_POLICY": "passive"}
LETTERS = string.ascii_uppercase, string.ascii_lowercase  # of keys and values, as in the facts of `titans demo`
REPEATED = 8  # turns of a memory that are repeated alone
console = Console()


class Server:
    """`titans serve` in a process of its own, with a store of its own."""

    def __init__(self, model: Path, *options: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        command = [sys.executable, "-m", "titans.cli", "serve", str(model), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--memories", self.folder.name, *options],
            env={**os.environ, **ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split(" at ")[1].strip()
        self.model = model.name

    def __enter__(self) -> Server:
        while True:
            try:
                httpx.get(f"{self.url}/healthz").raise_for_status()
                return self
            except httpx.TransportError:
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(120)
        self.folder.cleanup()

    @property
    def rss(self) -> int:
        """Bytes of memory the process holds (Linux)."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Talk:
    """A memory that plants its own fact and asks for it."""

    def __init__(self, server: Server, http: httpx.AsyncClient, name: str, number: int) -> None:
        self.server, self.http, self.name, self.number = server, http, name, number
        self.said: list[str] = []
        self.turn = 0
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()

    def prompt(self) -> str:
        """Return the next thing to say: at first the fact, then the question."""
        key, value = (letters[(self.number * k) % 26] for letters, k in zip(LETTERS, (1, 7), strict=True))
        return f"#{key}{value} this is memory {self.number}. " if self.turn % 2 == 0 else f"#{key}"

    @property
    def remembered(self) -> int:
        """How many questions were answered with the fact."""
        value = LETTERS[1][(self.number * 7) % 26]
        return sum(text.startswith(value) for text in self.said[1::2])

    async def step(self, max_tokens: int = 16) -> None:
        """Say it, and come again where the server is full."""
        body = {"model": self.server.model, "prompt": self.prompt(), "memory": self.name, "temperature": 0}
        while True:
            start = time.perf_counter()
            response = await self.http.post("/v1/completions", json={**body, "max_tokens": max_tokens})
            self.statuses[response.status_code] += 1
            if response.status_code not in (429, 503):
                break
            await asyncio.sleep(float(response.headers["retry-after"]))
        response.raise_for_status()
        self.seconds.append(time.perf_counter() - start)
        self.said.append(response.json()["choices"][0]["text"])
        self.turn += 1


def _client(server: Server) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits)


async def load(model: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Let more clients talk at once than there are places; then let each memory talk alone and compare every word."""
    with Server(model, "--max-queue", "16") as server:
        async with _client(server) as http:
            talks = [Talk(server, http, f"memory-{i}", i) for i in range(clients)]
            memory: list[int] = []
            end = time.monotonic() + seconds

            async def talk(one: Talk) -> None:
                while time.monotonic() < end:
                    await one.step()

            async def sample() -> None:
                while time.monotonic() < end:
                    memory.append(server.rss)
                    await asyncio.sleep(1)

            await asyncio.gather(sample(), *map(talk, talks))
    different = await _replay(model, talks)
    statuses = sum((one.statuses for one in talks), Counter())
    latencies = [s for one in talks for s in one.seconds]
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(latencies),
        "statuses": dict(statuses),
        "tokens_per_second": 16 * len(latencies) / seconds,
        "latency": _quantiles(latencies),
        "memories_that_differ_from_a_single_user": different,
        "facts_remembered": sum(one.remembered for one in talks) / sum(one.turn // 2 for one in talks),
        "rss_mb": [round(x / 2**20) for x in memory],
    }


async def _replay(model: Path, talks: list[Talk]) -> int:
    """Repeat the beginning of every memory alone; returns how many were told something else."""
    different = 0
    with Server(model) as server:
        async with _client(server) as http:
            for one in talks:
                alone = Talk(server, http, one.name, one.number)
                for _ in range(min(one.turn, REPEATED)):
                    await alone.step()
                different += alone.said != one.said[: len(alone.said)]
    return different


async def batching(model: Path, memories: int, turns: int) -> dict[str, Any]:
    """Compare a server that joins requests into batches with one that serves one at a time, in turns."""
    rates: dict[str, list[float]] = {"batched": [], "one at a time": []}
    for _ in range(3):
        for name, places in (("batched", memories), ("one at a time", 1)):
            with Server(model, "--max-batch", str(places), "--max-queue", str(memories)) as server:
                async with _client(server) as http:
                    talks = [Talk(server, http, f"s{i}", i) for i in range(memories)]
                    await asyncio.gather(*(one.step() for one in talks))  # warm-up
                    start = time.perf_counter()
                    for _ in range(turns):
                        await asyncio.gather(*(one.step(32) for one in talks))
                    rates[name].append(32 * turns * memories / (time.perf_counter() - start))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return {"memories": memories, "tokens_per_second": medians, "ratio": medians["batched"] / medians["one at a time"]}


async def many_memories(model: Path, count: int, active: int) -> dict[str, Any]:
    """Measure the latency of some memories in a store of few and of many."""
    found = {}
    for total in (active, count):
        with Server(model) as server:
            async with _client(server) as http:
                first = Talk(server, http, "first", 0)
                await first.step(1)
                for start in range(1, total, 8):
                    names = [f"memory-{i}" for i in range(start, min(start + 8, total))]
                    url = "/v1/memories/default/first/fork"
                    for made in await asyncio.gather(*(http.post(url, json={"to": name}) for name in names)):
                        made.raise_for_status()
                spread = [1 + i * (total - 1) // active for i in range(active)]  # all over the store
                talks = [Talk(server, http, f"memory-{i}", i) for i in spread]
                for one in talks:
                    await one.step(4)
                latencies = [s for one in talks for s in one.seconds]
                start_list = time.perf_counter()
                (await http.get("/v1/memories?limit=100")).raise_for_status()
                found[total] = {**_quantiles(latencies), "list": time.perf_counter() - start_list}
    ratio = found[count]["median"] / found[active]["median"]
    return {"active": active, "latency": found, "ratio_of_medians": ratio}


async def beside_a_long_prompt(model: Path, tokens: int) -> dict[str, Any]:
    """Measure short answers alone and beside a prompt that is read meanwhile."""
    with Server(model) as server:
        async with _client(server) as http:
            short = Talk(server, http, "short", 0)
            for _ in range(20):
                await short.step()
            alone, short.seconds = short.seconds[4:], []
            body = {"model": model.name, "prompt": "x" * tokens, "max_tokens": 1}
            long = asyncio.create_task(http.post("/v1/completions", json=body))
            while not long.done():
                await short.step()
            long.result().raise_for_status()
    medians = {"alone": statistics.median(alone), "beside": statistics.median(short.seconds)}
    return {"tokens": tokens, "latency": medians, "ratio": medians["beside"] / medians["alone"]}


def _quantiles(x: list[float]) -> dict[str, float]:
    hundredths = statistics.quantiles(x, n=100)
    return {"median": hundredths[49], "p95": hundredths[94], "p99": hundredths[98]}


def bench(
    model: Annotated[Path, typer.Argument(help="A model folder, as titans train leaves it.")],
    clients: Annotated[int, typer.Option(help="Clients at once.")] = 64,
    seconds: Annotated[float, typer.Option(help="How long they talk.")] = 120,
    memories: Annotated[int, typer.Option(help="Memories in the store.")] = 10_000,
    out: Annotated[Path, typer.Option(help="Folder for serving.json and serving.png.")] = Path("bench-report"),
) -> None:
    """Measure a server: load, batching, many memories."""
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "settings": ENVIRONMENT}
    for name, run in (
        ("batching", lambda: batching(model, 16, 4)),
        ("load", lambda: load(model, clients, seconds)),
        ("many_memories", lambda: many_memories(model, memories, 100)),
        ("long_prompt", lambda: beside_a_long_prompt(model, 100_000)),
    ):
        console.print(f"measuring: {name}")
        results[name] = asyncio.run(run())
        console.print_json(data={k: v for k, v in results[name].items() if k != "rss_mb"})
        (out / "serving.json").write_text(json.dumps(results, indent=1) + "\n")
    plots.save(_plot(results), out / "serving.png")
    console.print(f"written: {out}/serving.json, {out}/serving.png")
    failures = _failures(results)
    for sentence in failures:
        console.print(sentence)
    raise typer.Exit(bool(failures))


def _failures(results: dict[str, Any]) -> list[str]:
    """What must hold and does not."""
    load, memory = results["load"], results["load"]["rss_mb"]
    quarter = len(memory) // 4
    checks = {
        "a memory was told something else than alone": load["memories_that_differ_from_a_single_user"] == 0,
        "a status other than 200, 429 and 503 came": set(load["statuses"]) <= {200, 429, 503},
        "the process's memory grows": max(memory[-quarter:]) <= 1.2 * max(memory[quarter : 2 * quarter]),
        "batches are less than 3 times as fast": results["batching"]["ratio"] >= 3,
        "short answers take more than 3 times as long beside a long prompt": results["long_prompt"]["ratio"] <= 3,
        "many memories make requests slower": results["many_memories"]["ratio_of_medians"] <= 1.25,
    }
    return [f"FAILED: {what}" for what, holds in checks.items() if not holds]


def _plot(results: dict[str, Any]) -> Figure:
    drawn, (left, right) = plots.figure(2, size=(9, 3.5))
    memory = results["load"]["rss_mb"]
    plots.line(left, range(len(memory)), memory, markers=False)
    left.set(xlabel="seconds", ylabel="MB", ylim=(0, None), title=f"memory under {results['load']['clients']} clients")
    rates = results["batching"]["tokens_per_second"]
    right.bar(list(rates), list(rates.values()))
    right.set(ylabel="tokens per second", title=f"{results['batching']['memories']} memories")
    return drawn


if __name__ == "__main__":
    typer.run(bench)
