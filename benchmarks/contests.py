"""The contests: who meets whom, at what, and what is made of the times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from measure import Contestant, Failed, Measured, contestants, race

TOKENS = 2048
# How a peer is called, its module of `subjects`, and the heads of the memory it is compared with.
PEERS = {"titans-pytorch": ("titans_pytorch", 4), "titans-memory": ("titans_memory", 1)}
Row = dict[str, Any]


class Plan(NamedTuple):
    """How much is measured.

    Args:
        rounds: runs of each contestant that count.
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
    with contestants({"ours": sys.executable}) as field:
        for rule in ("chunk", "token"):
            _, facts = None, field["ours"].ask("build", task="reference", tokens=200, chunk=64, rule=rule)
            rows.append({"rule": rule, "relative error": facts["error"], "right": facts["error"] < 1e-9})
    return rows


def rate(one: Contestant, rounds: int) -> float:
    """FLOPs per second of CPU of a large matrix product."""
    flops = one.ask("build", task="sgemm", size=1024)["flops"]
    times = sorted(one.ask("time")["wall"] for _ in range(rounds + 1))
    return float(flops / times[len(times) // 2])


def parallel_form_flops(chunk: int, tokens: int = TOKENS, dim: int = 256, heads: int = 4, depth: int = 2) -> float:
    """FLOPs of the forward pass of the layer: the parallel form (semantics, section 2) and the projections.

    Per head, token and layer: six products with a weight matrix (five in the first layer: its inputs get no
    error), and two with the other tokens of the chunk.
    """
    width = dim // heads
    sizes = (
        [(width, 2 * width), *[(2 * width, 2 * width)] * (depth - 2), (2 * width, width)]
        if depth > 1
        else [(width, width)]
    )
    memory = sum(6 * i * o + chunk * (i + o) for i, o in sizes) - sizes[0][0] * sizes[0][1]
    projections = 5 * dim * dim  # queries, keys, values, gate, output
    return 2.0 * tokens * (heads * memory + projections)


def layer(plan: Plan) -> list[Row]:
    """Contests 1 and 2: the memory layer against its peers and against the machine."""
    rows = []
    for name, (subject, heads) in PEERS.items():
        if name not in plan.pythons:
            continue
        with contestants({"ours": sys.executable, subject: plan.pythons[name]}) as field:
            for chunk in plan.chunks:
                for backward in (False, True):
                    setting = {"task": "layer", "tokens": TOKENS, "chunk": chunk, "backward": backward, "heads": heads}
                    found = race(field, dict.fromkeys(field, setting), plan.rounds)
                    ours, peer = found["ours"], found[subject]
                    rows.append({
                        "peer": name, "heads": heads, "chunk": chunk, "pass": _pass(backward), **_times("ours", ours),
                        **_times("peer", peer), "CPU ratio": peer.cpu / ours.cpu, "wall ratio": peer.wall / ours.wall,
                    })  # fmt: skip
    return rows


def limit(plan: Plan) -> list[Row]:
    """Contest 2: the share of the time in which the machine could do the parallel form's products alone."""
    rows = []
    with contestants({"ours": sys.executable}) as field:
        for chunk in plan.chunks:
            for backward in (False, True):
                machine = rate(field["ours"], plan.rounds)
                setting = {"task": "layer", "tokens": TOKENS, "chunk": chunk, "backward": backward}
                ours = race(field, {"ours": setting}, plan.rounds)["ours"]
                machine = max(machine, rate(field["ours"], plan.rounds))
                flops = parallel_form_flops(chunk) * (3 if backward else 1)
                rows.append({
                    "chunk": chunk, "pass": _pass(backward), "GFLOP": flops / 1e9, "machine GFLOP/s": machine / 1e9,
                    **_times("ours", ours), "share of the limit": flops / machine / ours.wall,
                })  # fmt: skip
    return rows


def growth(plan: Plan) -> list[Row]:
    """Contest 3: forward and backward as the sequence grows."""
    rows = []
    tasks: dict[str, tuple[str, Callable[[int], Row]]] = {
        "ours": ("ours", lambda n: {"task": "layer", "tokens": n, "chunk": 64, "backward": True}),
        "ours, op alone": ("ours", lambda n: {"task": "op", "tokens": n, "chunk": 64}),
        "full attention": ("attention", lambda n: {"task": "full", "tokens": n}),
        "sliding window": ("attention", lambda n: {"task": "sliding", "tokens": n}),
    }
    for name, (subject, setting) in tasks.items():
        for tokens in plan.lengths:
            if name == "full attention" and tokens > 16 * 1024:
                continue  # minutes a run
            with contestants({subject: sys.executable}) as field:
                found = race(field, {subject: setting(tokens)}, max(1, plan.rounds // 2))[subject]
            rows.append({"mixer": name, "tokens": tokens, **_times(name="", measured=found)})
    return rows


def training(plan: Plan) -> list[Row]:
    """Contest 4: a training step of a MAC language model."""
    rows, setting = [], {"task": "train", "tokens": 1024, "segment": 64}
    for name in ("titans-pytorch",):
        if name in plan.pythons:
            subject = PEERS[name][0]
            with contestants({"ours": sys.executable, subject: plan.pythons[name]}) as field:
                sizes = {n: one.ask("build", **setting)["parameters"] for n, one in field.items()}
                found = race(field, dict.fromkeys(field, setting), plan.rounds)
            speeds = {n: setting["tokens"] / m.wall for n, m in found.items()}  # type: ignore[operator]
            rows.append({
                "peer": name, "our parameters": sizes["ours"], "peer's parameters": sizes[subject],
                "our tokens/s": speeds["ours"], "peer's tokens/s": speeds[subject],
                "ratio": speeds["ours"] / speeds[subject], "CPU ratio": found[subject].cpu / found["ours"].cpu,
            })  # fmt: skip
    return rows


def generation(plan: Plan) -> list[Row]:
    """Contest 5: time per generated token and bytes of state after a context."""
    rows = []
    for context in plan.contexts:
        for name, subject, setting in [
            *((v.upper(), "ours", {"task": "generate", "variant": v}) for v in ("lmm", "mac", "mag", "mal")),
            ("attention, key-value cache", "attention", {"task": "generate"}),
        ]:
            with contestants({subject: sys.executable}) as field:
                facts = field[subject].ask("build", **setting, context=context)
                times = sorted(field[subject].ask("time")["wall"] for _ in range(plan.rounds + 1))
            rows.append({
                "model": name, "context": context, "ms per token": 1e3 * times[len(times) // 2] / facts["tokens"],
                "state bytes": facts["state"],
            })  # fmt: skip
    return rows


def _pass(backward: bool) -> str:
    return "forward + backward" if backward else "forward"


def _times(name: str, measured: Measured) -> Row:
    return {
        f"{name} CPU s".strip(): measured.cpu,
        f"{name} wall s".strip(): measured.wall,
        f"{name} peak MB".strip(): None if measured.bytes is None else measured.bytes / 1e6,
    }


__all__ = ["Failed", "Plan", "check", "generation", "growth", "layer", "limit", "training"]
