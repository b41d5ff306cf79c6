"""Training throughput of every model against the length of its sequences (the paper's figure), at equal parameters.

    python experiments/baselines/throughput.py
    python experiments/baselines/throughput.py --device cuda --scale 170m

A step is forward, backward and AdamW on 16,384 tokens, as one sequence or as many; models take turns, and the median of
their steps counts. Every model is a process's only one for a turn, so what is compared is compared within one run.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from titans import plots
from titans.evaluation.results import save_result
from titans.models.presets import MODELS, from_preset

LENGTHS = (256, 1024, 4096, 16_384)
TOKENS = 16_384  # of a step


def build(name: str, scale: str, device: str) -> tuple[Any, torch.optim.Optimizer]:
    """Make a model and its optimizer."""
    torch.manual_seed(0)
    model = from_preset(f"{name}-{scale}").to(device).train()
    return model, torch.optim.AdamW(model.parameters())


def seconds(model: Any, optimizer: torch.optim.Optimizer, length: int, device: str) -> float:
    """Time one step: of the processor on a CPU, of the wall elsewhere."""
    ids = torch.randint(256, (TOKENS // length, length), device=device)
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    loss = model(ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()  # waits for the device
    return clock() - start


def measure(names: list[str], scale: str, device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return tokens a second by model and length; the first step of each is not counted."""
    models = {name: build(name, scale, device) for name in names}
    rates: dict[str, dict[str, float]] = {name: {} for name in names}
    for length in LENGTHS:
        found: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(rounds + 1):
            for name in names:
                taken = seconds(*models[name], length, device)
                if turn:
                    found[name].append(taken)
        for name in names:
            rates[name][str(length)] = TOKENS / statistics.median(found[name])
            print(f"{length:6,} tokens  {name:18} {rates[name][str(length)]:10,.0f} tokens/s", flush=True)
    return rates


def plot(rates: dict[str, dict[str, float]], unit: str) -> Figure:
    """Draw throughput against length, a line for each model."""
    drawn, (axes,) = plots.figure(size=(9, 5))
    for number, (name, by_length) in enumerate(rates.items()):
        plots.line(axes, map(int, by_length), by_length.values(), number, label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens of a sequence", ylabel=f"tokens per second of {unit}")
    axes.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
    plots.legend(axes, ncols=2, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return drawn


def main() -> None:
    """Measure, and write `throughput.json` and `throughput.png`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="tiny", help="of the presets; default tiny, 0.3 M parameters")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=2, help="steps that count; default 2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/lab-notes/baselines/throughput"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rates = measure(arguments.models, arguments.scale, arguments.device, arguments.rounds)
    unit = "processor time" if arguments.device == "cpu" else "time"
    machine = platform.machine() if arguments.device == "cpu" else torch.cuda.get_device_name()
    settings = {"scale": arguments.scale, "tokens": TOKENS, "threads": arguments.threads, "rounds": arguments.rounds}
    content = settings | {"machine": machine, "unit": f"tokens per second of {unit}", "rates": rates}
    save_result(arguments.out, "throughput", content, plot(rates, unit))


if __name__ == "__main__":
    main()
