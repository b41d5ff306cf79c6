"""Which models recall far beyond the lengths they were trained at, and what carries a memory there.

    python experiments/long_context/recall.py

One of eight facts among random filler is asked for (the needle of `titans evaluate recall`, seven distractors).
Trained at 20 to 256 tokens, every model on the same; attention windows and MAC's segments hold 16 tokens. Finished
trainings and tests are files below --work, so the same command goes on, and several at a time, of different --models,
share them. A length is not asked of a model whose answers at the one before were worse than a quarter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import small_models
import torch
from report import command, plot, pooled
from small_models import GATE_FLOOR, MODELS, PARAMETERS, WRITE_COST

from titans.data.synthetic.registry import make_task
from titans.data.synthetic.task import Size, parse_sizes
from titans.evaluation.model_zoo import make_model, matched
from titans.evaluation.results import save_result
from titans.evaluation.synthetic import score
from titans.evaluation.synthetic_training import Budget, generator_for, train_on
from titans.evaluation.thresholds import find_thresholds
from titans.io import atomic
from titans.layers.neural_memory import NeuralMemory
from titans.models.configuration import merge_fields

VOCABULARY, FACTS = 64, 8
TASK = make_task("needle", {"vocabulary": VOCABULARY})
TRAIN = parse_sizes(["20/5", "32/6", "64/8", "256/8"])
LENGTHS = (256, 2048, 4096, 16_384, 65_536)
LEVER_LENGTH, ANY = 16_384, 1 << 24
PIECE = 160  # tokens of one forward pass: the shorter, the more rows at once, and the operations are small
LEAST = 0.25  # accuracy below which greater lengths are not asked
CALIBRATION = Size(2048, FACTS)
LONGER = 1200  # steps of the rivals that learn the task at all: in 400, as the others have, they learn it in part
BASE = {**small_models.BASE, "sliding_window": 16, "segment_length": 16}


@dataclasses.dataclass(frozen=True)
class Setting:
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
        seeds: that it is asked of, at most.
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
    seeds: int = 3

    def training(self) -> str:
        """Name what decides the weights."""
        testing = ("gate_floor", "gated", "longest", "seeds")
        fields = {name: value for name, value in dataclasses.asdict(self).items() if name not in testing}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]


def whole(name: str, **options: Any) -> Setting:
    """Return a model as it is compared with others, at all lengths."""
    fields, rate = MODELS[name]
    return Setting(fields, rate, longest=ANY, **options)


def lever(**options: Any) -> Setting:
    """Return MAC with one of the things that might carry it."""
    fields, rate = MODELS["titans-mac"]
    return Setting(fields, rate, **options)


def two_layers(variant: str, rate: float) -> Setting:
    """Return a model whose memory has two layers, at all lengths."""
    fields = {"variant": variant, "memory": {"depth": 2, "expansion": 2, "rule": "token"}}
    return Setting(fields, rate, write_cost=WRITE_COST, gate_floor=GATE_FLOOR, longest=ANY)


CARRIED = {"sizes": (*TRAIN, *parse_sizes(["512/8"])), "piece_length": 64}
SETTINGS = {
    "titans-mac": whole("titans-mac", write_cost=WRITE_COST, gate_floor=GATE_FLOOR),
    "titans-mac, price alone": lever(write_cost=WRITE_COST),
    "titans-mac, closing alone": lever(gate_floor=GATE_FLOOR),
    "titans-mac, surprise alone": lever(gated=True),
    "titans-mac, carried alone": lever(**CARRIED),
    "titans-mac, low start alone": lever(low_start=True, seeds=1),
    "titans-mac, plain": lever(),
    "titans-lmm": whole("titans-lmm", write_cost=WRITE_COST, gate_floor=GATE_FLOOR),
    "titans-mac-two-layers": two_layers("mac", 4e-3),
    "titans-lmm-two-layers": two_layers("lmm", 4e-3),
    **{name: whole(name, steps=LONGER) for name in ("deltanet", "gated-deltanet", "mamba2")},
    **{name: whole(name) for name in ("ttt-linear", "transformer", "swa")},
}


def load(variant: Setting, seed: int, work: Path) -> Any:
    """Return the trained model, after training it where its weights do not lie in `work` yet."""
    fields = matched(merge_fields(BASE, variant.fields), VOCABULARY, PARAMETERS)
    model = make_model(merge_fields(fields, {"memory": {"gate_floor": variant.gate_floor}}), VOCABULARY, seed)
    path = work / f"{variant.fields['variant']}-{variant.training()}-{seed}.safetensors"
    if path.exists():
        model.load_state_dict(safetensors.torch.load_file(path))
        return model.eval()
    c = variant
    if c.low_start:
        close_gates(model)
    budget = Budget(c.steps, 32, c.learning_rate, write_cost=c.write_cost, piece_length=c.piece_length)
    training = train_on(model, TASK, c.sizes, budget, seed)
    print(f"{path.stem}: {training.tokens:,} tokens, {training.curve[-1][1]:.3f} nats at the end", flush=True)
    atomic.write(path, safetensors.torch.save({k: v.contiguous() for k, v in model.state_dict().items()}))
    return model


def close_gates(model: Any) -> None:
    """Let the write gates of a new model start nearly closed."""
    for layer in model.modules():
        if isinstance(layer, NeuralMemory):
            torch.nn.init.constant_(layer.gates.bias[: layer.num_heads], -3.0)


def test(name: str, seed: int, lengths: list[int], samples: int, work: Path) -> dict[int, int]:
    """Return the right answers at each length, after asking for those that are not known yet."""
    variant, found, model, policy = SETTINGS[name], dict[int, int](), None, None
    for length in (length for length in lengths if length <= variant.longest):
        label = f"{name.replace(', ', '-').replace(' ', '-')}-{variant.training()}"
        path = work / f"{label}-{seed}-{length}-{samples}.json"
        if not path.exists():
            model = model or load(variant, seed, work)
            if variant.gated and policy is None:
                texts = TASK.part("test").batch(4, CALIBRATION, generator_for(seed, "validation"))[0]
                with torch.inference_mode():
                    policy = find_thresholds(model, list(texts))[0]
            result = score(model, TASK, Size(length, FACTS), sequences=samples, piece_length=PIECE, policy=policy)
            atomic.write_json(path, {"correct": result.correct, "asked": result.asked, "loss": result.loss})
            print(f"{name}, seed {seed}, {length:,} tokens: {result.accuracy:.0%}", flush=True)
        found[length] = json.loads(atomic.read(path))["correct"]
        if found[length] < LEAST * samples:
            break
    return found


def main() -> None:
    """Train and test what is missing, and write `recall.json` and `recall.png`."""
    parser = command("recall", __doc__, SETTINGS, (1, 2, 3))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--samples", type=int, default=100, help="questions at each length and seed")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    models = {}
    for name in arguments.models:
        found = {
            seed: test(name, seed, sorted(arguments.lengths), arguments.samples, arguments.work)
            for seed in arguments.seeds[: SETTINGS[name].seeds]
        }
        models[name] = pooled(found, arguments.samples)
        print(name, {length: f"{cell['accuracy']:.0%}" for length, cell in models[name].items()}, flush=True)
    settings = {"samples": arguments.samples, "seeds": arguments.seeds, "facts": FACTS, "vocabulary": VOCABULARY}
    panels = {
        "models": {name: cells for name, cells in models.items() if "," not in name},
        "MAC: what carries it": {name: cells for name, cells in models.items() if name.startswith("titans-mac")},
    }
    save_result(arguments.out, "recall", settings | {"models": models}, plot(panels, dict.fromkeys(panels, 1 / FACTS)))


if __name__ == "__main__":
    main()
