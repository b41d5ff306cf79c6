"""The contests: who meets whom, at what, and what is made of the times."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from measure import Failed, Measured, Worker, race, workers

TOKENS = 2048
# How a peer is called, its module of `subjects`, and the heads of the memory it is compared with.
PEERS = {"titans-pytorch": ("titans_pytorch", 4), "titans-memory": ("titans_memory", 1)}
Row = dict[str, Any]
Field = dict[str, Path | str]


class Plan(NamedTuple):
    """How much is measured.

    Args:
        rounds: runs of each worker that count.
        chunks: chunk sizes of the layer contests.
        lengths: tokens of the growth contest.
        contexts: tokens read before generation starts.
        pythons: the interpreters of the peers that could be installed.
    """

    rounds: int
    chunks: tuple[int, ...]
    lengths: tuple[int, ...]
    contexts: tuple[int, ...]
    pythons: dict[str, Path]


def check() -> list[Row]:
    """Hold our op against the reference; a speed is worth nothing while the numbers are wrong."""
    rows = []
    with workers({"ours": sys.executable}) as field:
        for rule in ("chunk", "token"):
            facts = field["ours"].ask("build", task="reference", tokens=200, chunk=64, rule=rule)
            rows.append({"rule": rule, "relative error": facts["error"], "right": facts["error"] < 1e-9})
    return rows


def rate(one: Worker) -> float:
    """FLOPs per second of a large matrix product, the best of three."""
    flops = one.ask("build", task="sgemm", size=1024)["flops"]
    return float(flops / min(one.ask("time")["wall"] for _ in range(3)))


def parallel_form_flops(chunk: int, tokens: int = TOKENS, dim: int = 256, heads: int = 4, depth: int = 2) -> float:
    """FLOPs of the forward pass of the layer: the parallel form (docs/semantics.md, section 2) and the projections.

    Per head, token and layer: six products with a weight matrix (five in the first layer: its inputs get no
    error), and two with the other tokens of the chunk.
    """
    width = dim // heads
    sizes = list(itertools.pairwise([width, *[2 * width] * (depth - 1), width]))
    memory = sum(6 * i * o + chunk * (i + o) for i, o in sizes) - sizes[0][0] * sizes[0][1]
    projections = 5 * dim * dim  # queries, keys, values, gate, output
    return 2.0 * tokens * (heads * memory + projections)


def layer(plan: Plan) -> Iterator[Row]:
    """Contest 1: the memory layer against its peers."""
    for name, (subject, heads) in PEERS.items():
        if name not in plan.pythons:
            continue
        field: Field = {"ours": sys.executable, subject: plan.pythons[name]}
        for chunk, backward in itertools.product(plan.chunks, (False, True)):
            setting = {"task": "layer", "tokens": TOKENS, "chunk": chunk, "backward": backward, "heads": heads}
            row = {"peer": name, "heads": heads, "chunk": chunk, "pass": _pass(backward)}
            try:
                found = race(field, dict.fromkeys(field, setting), plan.rounds)
            except Failed as error:
                yield {**row, "peer": str(error)}
                break  # the rest of what this peer would be asked takes as long
            ours, peer = found["ours"], found[subject]
            ratios = {"CPU ratio": peer.cpu / ours.cpu, "wall ratio": peer.wall / ours.wall}
            yield {**row, **_times("our", ours), **_times("peer's", peer), **ratios}


def limit(plan: Plan) -> Iterator[Row]:
    """Contest 2: the share of the time in which the machine could do the parallel form's products alone."""
    for chunk in plan.chunks:
        for backward in (False, True):
            setting = {"task": "layer", "tokens": TOKENS, "chunk": chunk, "backward": backward}
            with workers({"ours": sys.executable}) as field:
                pairs = []
                for _ in range(plan.rounds):
                    machine = rate(field["ours"])
                    field["ours"].ask("build", **setting)
                    field["ours"].ask("time")
                    pairs.append((machine, field["ours"].ask("time")["wall"]))
            flops = parallel_form_flops(chunk) * (3 if backward else 1)
            yield {
                "chunk": chunk, "pass": _pass(backward), "GFLOP": flops / 1e9,
                "machine GFLOP/s": statistics.median(machine for machine, _ in pairs) / 1e9,
                "wall s": statistics.median(wall for _, wall in pairs),
                "share of the limit": statistics.median(flops / machine / wall for machine, wall in pairs),
            }  # fmt: skip


def growth(plan: Plan) -> Iterator[Row]:
    """Contest 3: forward and backward as the sequence grows."""
    tasks: dict[str, tuple[str, Callable[[int], Row]]] = {
        "ours": ("ours", lambda n: {"task": "layer", "tokens": n, "chunk": 64, "backward": True}),
        "ours, op alone": ("ours", lambda n: {"task": "op", "tokens": n, "chunk": 64}),
        "full attention": ("attention", lambda n: {"task": "full", "tokens": n}),
        "sliding window": ("attention", lambda n: {"task": "sliding", "tokens": n}),
    }
    for tokens in plan.lengths:
        for name, (subject, setting) in tasks.items():
            if name == "full attention" and tokens > 16 * 1024:
                continue  # minutes a run
            found = race({subject: sys.executable}, {subject: setting(tokens)}, max(1, plan.rounds // 2))[subject]
            yield {"mixer": name, "tokens": tokens, **_times("", found)}


def training(plan: Plan) -> Iterator[Row]:
    """Contest 4: a training step of a MAC language model."""
    setting = {"task": "train", "tokens": 1024, "segment": 64}
    for name in ("titans-pytorch",):
        if name not in plan.pythons:
            continue
        subject = PEERS[name][0]
        field: Field = {"ours": sys.executable, subject: plan.pythons[name]}
        found = race(field, dict.fromkeys(field, setting), plan.rounds)
        ours, peer = found["ours"], found[subject]
        yield {
            "peer": name, "our parameters": ours.facts["parameters"], "peer's parameters": peer.facts["parameters"],
            "our tokens/s": 1024 / ours.wall, "peer's tokens/s": 1024 / peer.wall, "wall ratio": peer.wall / ours.wall,
            "CPU ratio": peer.cpu / ours.cpu,
        }  # fmt: skip


def generation(plan: Plan) -> Iterator[Row]:
    """Contest 5: time per generated token and bytes of state after a context."""
    models = {v.upper(): ("ours", {"task": "generate", "variant": v}) for v in ("lmm", "mac", "mag", "mal")}
    models["attention, key-value cache"] = ("attention", {"task": "generate"})
    for context in plan.contexts:
        for name, (subject, setting) in models.items():
            found = race({subject: sys.executable}, {subject: {**setting, "context": context}}, plan.rounds)[subject]
            yield {
                "model": name, "context": context, "ms per token": 1e3 * found.wall / found.facts["tokens"],
                "state bytes": found.facts["state"],
            }  # fmt: skip


def _pass(backward: bool) -> str:
    return "forward + backward" if backward else "forward"


def _times(name: str, measured: Measured) -> Row:
    return {
        f"{name} CPU s".strip(): measured.cpu,
        f"{name} wall s".strip(): measured.wall,
        f"{name} peak MB".strip(): None if measured.bytes is None else measured.bytes / 1e6,
    }
