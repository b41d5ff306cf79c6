"""The models of these experiments: of one size, trained once, and kept as folders that `titans evaluate` reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from titans.data.synthetic.task import Size, SyntheticTask
from titans.evaluation.model_zoo import make_model, matched
from titans.evaluation.synthetic_training import Budget, train_on
from titans.models.configuration import merge_fields

PARAMETERS = 140_000  # but for embeddings
GATE_FLOOR = 0.15  # share of an open write gate below which it closes in the test
WRITE_COST = 0.3
TEST_BOOK = "Great-Expectations_1400.txt.xz"  # of the nine, the one that nothing is trained on
BASE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "sliding_window": 32,
    "segment_length": 32,
    "num_persistent_tokens": 4,
    "memory": {"chunk_size": 16},
    "tie_word_embeddings": False,
}
MATRIX = {"memory": {"depth": 1, "rule": "token"}}
MODELS: dict[str, tuple[dict[str, Any], float]] = {  # fields and learning rate, the better of two at MQAR
    "titans-mac": ({"variant": "mac", **MATRIX}, 4e-3),
    "titans-mal": ({"variant": "mal", **MATRIX}, 4e-3),
    "titans-lmm": ({"variant": "lmm", **MATRIX}, 8e-3),
    "deltanet": ({"variant": "deltanet"}, 8e-3),
    "gated-deltanet": ({"variant": "gated-deltanet"}, 8e-3),
    "mamba2": ({"variant": "mamba2", "memory": {"num_heads": 4}}, 8e-3),
    "ttt-linear": ({"variant": "ttt-linear"}, 8e-3),
    "transformer": ({"variant": "transformer"}, 2e-3),
    "swa": ({"variant": "swa"}, 2e-3),
}


def training_books(folder: Path) -> list[Path]:
    """Return the books of a folder that models are trained on."""
    return [path for path in sorted(folder.glob("*.txt*")) if path.name != TEST_BOOK]


def trained(
    name: str,
    tokenizer: Any,
    task: Callable[[], SyntheticTask],
    sizes: Sequence[Size],
    budget: Budget,
    seed: int,
    folder: Path,
) -> Any:
    """Return a model of `MODELS`, trained here where its folder does not hold it yet.

    Args:
        name: which.
        tokenizer: kept with it; decides the vocabulary.
        task: makes what it is trained on, which reads books; not called where nothing is trained.
        sizes: at which.
        budget: how long; the learning rate is the model's own. Where writing has a price, memory layers close their
            nearly closed gates in the test.
        seed: of the weights and the data.
        folder: of the model.

    Returns:
        The model, in evaluation mode.
    """
    from titans.models.modeling import TitansForCausalLM

    if folder.exists():
        return TitansForCausalLM.from_pretrained(folder).eval()
    fields, rate = MODELS[name]
    floor = {"memory": {"gate_floor": GATE_FLOOR}} if budget.write_cost and "rule" in fields.get("memory", {}) else {}
    model = make_model(
        matched(merge_fields(merge_fields(BASE, fields), floor), len(tokenizer), PARAMETERS), len(tokenizer), seed
    )
    shown: list[int] = []

    def show(share: float, loss: float) -> None:
        if int(10 * share) not in shown:
            shown.append(int(10 * share))
            print(f"{name}, seed {seed}: {share:.0%} of the training, {loss:.3f} nats", flush=True)

    training = train_on(model, task(), sizes, dataclasses.replace(budget, learning_rate=rate), seed, show)
    print(f"{name}, seed {seed}: {training.tokens:,} tokens, {training.curve[-1][1]:.3f} nats at the end", flush=True)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    tokenizer.save_pretrained(unfinished)
    model.save_pretrained(unfinished)
    unfinished.rename(folder)  # so that a folder is whole where there is one
    return model
