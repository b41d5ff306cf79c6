"""Which models recall far beyond the lengths they were trained at, and what carries a memory there.

    python experiments/long_context/recall.py
    python experiments/long_context/recall.py --models titans-mac --lengths 1048576 --samples 8 --seeds 1

One of eight facts among random filler is asked for (the needle of `titans evaluate recall`, seven distractors).
Trained at 20 to 256 tokens, every model on the same; attention windows and MAC's segments hold 16 tokens. Finished
trainings and tests are files below --work, so the same command goes on, and several at a time, of different --models,
share them. A length is not asked of a model whose answers at the one before were worse than a quarter.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from titans import disk
from titans.data.probe import Size, parse_sizes
from titans.data.probes import make_probe
from titans.evaluation.calibration import find_thresholds
from titans.evaluation.comparison.report import STYLES
from titans.evaluation.contestants import make_model, matched
from titans.evaluation.probe_training import Budget, generator_for, train_on
from titans.evaluation.probes import score
from titans.evaluation.recall import wilson
from titans.layers.neural_memory import NeuralMemory

VOCABULARY, FACTS, PARAMETERS = 64, 8, 140_000
PROBE = make_probe("needle", {"vocabulary": VOCABULARY})
TRAIN = parse_sizes(["20/5", "32/6", "64/8", "256/8"])
LENGTHS = (2048, 4096, 16_384, 65_536)
LEVER_LENGTH, ANY = 16_384, 1 << 24
LEAST = 0.25  # accuracy below which greater lengths are not asked
FLOOR = 0.15  # share of an open write gate below which it closes
CALIBRATION = Size(2048, FACTS)
BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "sliding_window": 16,
    "segment_length": 16,
    "num_persistent_tokens": 4,
    "memory_chunk_size": 16,
    "tie_word_embeddings": False,
}
MATRIX = {"memory_depth": 1, "memory_rule": "token"}
PRICE = 0.3


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A model, how it is trained, and how its memories write when it is tested.

    Args:
        fields: of its configuration.
        learning_rate: of its training.
        steps: of 32 sequences.
        write_cost: price of writing in training.
        low_start: whether the write gates start nearly closed, at a twentieth.
        sizes: trained at.
        piece_length: tokens after which gradients end.
        gate_floor: below it gates close in the test.
        gated: write only what surprises in the test, 30 % of the tokens.
        longest: tested at; greater lengths are for the models themselves, not for what carries them.
    """

    fields: dict[str, Any]
    learning_rate: float
    steps: int = 400
    write_cost: float = 0.0
    low_start: bool = False
    sizes: tuple[Size, ...] = TRAIN
    piece_length: int | None = None
    gate_floor: float = 0.0
    gated: bool = False
    longest: int = LEVER_LENGTH

    def training(self) -> str:
        """Return what decides the weights: all but the last three fields."""
        same = dataclasses.replace(self, gate_floor=0.0, gated=False, longest=0)
        return json.dumps(dataclasses.asdict(same), sort_keys=True)


MAC = {"variant": "mac", **MATRIX}
CARRIED = {"sizes": (*TRAIN, *parse_sizes(["512/8"])), "piece_length": 64}
CONTESTANTS = {
    "titans-mac": Contestant(MAC, 4e-3, write_cost=PRICE, gate_floor=FLOOR, longest=ANY),
    "titans-mac, price alone": Contestant(MAC, 4e-3, write_cost=PRICE),
    "titans-mac, closing alone": Contestant(MAC, 4e-3, gate_floor=FLOOR),
    "titans-mac, surprise alone": Contestant(MAC, 4e-3, gated=True),
    "titans-mac, carried alone": Contestant(MAC, 4e-3, **CARRIED),
    "titans-mac, low start alone": Contestant(MAC, 4e-3, low_start=True),
    "titans-mac, plain": Contestant(MAC, 4e-3),
    "titans-lmm": Contestant({**MAC, "variant": "lmm"}, 8e-3, write_cost=PRICE, gate_floor=FLOOR, longest=ANY),
    "transformer": Contestant({"variant": "transformer"}, 2e-3, longest=ANY),
    "swa": Contestant({"variant": "swa"}, 2e-3, longest=ANY),
    "mamba2": Contestant({"variant": "mamba2", "memory_heads": 4}, 8e-3, longest=ANY),
    "deltanet": Contestant({"variant": "deltanet"}, 8e-3, longest=ANY),
    "gated-deltanet": Contestant({"variant": "gated-deltanet"}, 8e-3, longest=ANY),
    "ttt-linear": Contestant({"variant": "ttt-linear"}, 8e-3, longest=ANY),
}


def load(contestant: Contestant, seed: int, work: Path) -> Any:
    """Return the trained model, after training it where its weights do not lie in `work` yet."""
    fields = matched({**BASE, **contestant.fields}, VOCABULARY, PARAMETERS)
    model = make_model({**fields, "memory_gate_floor": contestant.gate_floor}, VOCABULARY, seed)
    name = hashlib.sha256(contestant.training().encode()).hexdigest()[:12]
    path = work / f"{contestant.fields['variant']}-{name}-{seed}.safetensors"
    if path.exists():
        model.load_state_dict(safetensors.torch.load_file(path))
        return model.eval()
    c = contestant
    if c.low_start:
        close_gates(model)
    budget = Budget(c.steps, 32, c.learning_rate, write_cost=c.write_cost, piece_length=c.piece_length)
    training = train_on(model, PROBE, c.sizes, budget, seed)
    print(f"{path.stem}: {training.tokens:,} tokens, {training.curve[-1][1]:.3f} nats at the end", flush=True)
    disk.replace(path, safetensors.torch.save({k: v.contiguous() for k, v in model.state_dict().items()}))
    return model


def close_gates(model: Any) -> None:
    """Let the write gates of a new model start nearly closed."""
    for layer in model.modules():
        if isinstance(layer, NeuralMemory):
            torch.nn.init.constant_(layer.gates.bias[: layer.heads], -3.0)


def test(name: str, seed: int, lengths: list[int], samples: int, work: Path) -> dict[int, int]:
    """Return the right answers at each length, after asking for those that are not known yet."""
    contestant, found, model, policy = CONTESTANTS[name], dict[int, int](), None, None
    for length in (length for length in lengths if length <= contestant.longest):
        path = work / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}-{length}-{samples}.json"
        if not path.exists():
            model = model or load(contestant, seed, work)
            if contestant.gated and policy is None:
                texts = PROBE.part("test").batch(4, CALIBRATION, generator_for(seed, "validation"))[0]
                with torch.inference_mode():
                    policy = find_thresholds(model, list(texts))[0]
            result = score(model, PROBE, Size(length, FACTS), sequences=samples, policy=policy)
            disk.replace_json(path, {"correct": result.correct, "asked": result.asked, "loss": result.loss})
            print(f"{name}, seed {seed}, {length:,} tokens: {result.accuracy:.0%}", flush=True)
        found[length] = json.loads(disk.read(path))["correct"]
        if found[length] < LEAST * samples:
            break
    return found


def summary(found: dict[int, dict[int, int]], samples: int) -> dict[str, dict[str, Any]]:
    """Put the seeds of a model together: by length, the share of right answers and its Wilson interval."""
    lengths = sorted({length for by_length in found.values() for length in by_length})
    cells = {}
    for length in lengths:
        asked = {seed: by_length[length] for seed, by_length in found.items() if length in by_length}
        correct, trials = sum(asked.values()), samples * len(asked)
        low, high = wilson(correct, trials)
        shares = {str(seed): right / samples for seed, right in asked.items()}
        cells[str(length)] = {"accuracy": correct / trials, "low": low, "high": high, "seeds": shares}
    return cells


def plot(models: dict[str, dict[str, dict[str, Any]]]) -> bytes:
    """Draw the accuracy by length: the models, and beside them what carries MAC."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, names, title in (
        (left, [name for name in models if "," not in name], "models"),
        (right, [name for name in models if name.startswith("titans-mac")], "MAC: what carries it"),
    ):
        for number, name in enumerate(names):
            cells = models[name]
            values = [cell["accuracy"] for cell in cells.values()]
            errors = [[v - c["low"] for v, c in zip(values, cells.values(), strict=True)]]
            errors.append([c["high"] - v for v, c in zip(values, cells.values(), strict=True)])
            style, color = STYLES[number // 10 % len(STYLES)], f"C{number % 10}"
            axes.errorbar(list(map(int, cells)), values, errors, fmt=style, color=color, capsize=3, label=name)
        axes.axhline(1 / FACTS, color="#777777", linestyle=":", label="a guess among the facts")
        axes.set(xscale="log", ylim=(-0.03, 1.03), xlabel="tokens", ylabel="right answers, 95 % intervals", title=title)
        axes.set_xticks(LENGTHS, [f"{length // 1024} K" for length in LENGTHS])
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def main() -> None:
    """Train and test what is missing, and write `recall.json` and `recall.png`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS), metavar="NAME")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=100, help="questions at each length and seed")
    parser.add_argument("--work", type=Path, default=Path("runs/long-context-recall"), help="weights and answers")
    parser.add_argument("--out", type=Path, default=Path("docs/long-context"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the operations are too small to share
    arguments.work.mkdir(parents=True, exist_ok=True)
    models = {}
    for name in arguments.models:
        found = {
            seed: test(name, seed, sorted(arguments.lengths), arguments.samples, arguments.work)
            for seed in arguments.seeds
        }
        models[name] = summary(found, arguments.samples)
        print(name, {length: f"{cell['accuracy']:.0%}" for length, cell in models[name].items()}, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    settings = {"samples": arguments.samples, "seeds": arguments.seeds, "facts": FACTS, "vocabulary": VOCABULARY}
    disk.replace_json(arguments.out / "recall.json", settings | {"models": models})
    disk.replace(arguments.out / "recall.png", plot(models))


if __name__ == "__main__":
    main()
