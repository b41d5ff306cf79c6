"""What gated writing costs and brings on real text: always, gated and never, on a tiny LMM and a tiny MAC.

    python experiments/gated_writing.py                    # trains both, on the text that comes with Python
    python experiments/gated_writing.py --models runs/a runs/b --data my/texts

Writes `results.json` and `positions.png`, which docs/guide/writing.md shows.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from titans import WritePolicy, plots
from titans.data import Document, byte_tokenizer, documents, load_tokenizer
from titans.data.standard_library import standard_library
from titans.data.synthetic import Size
from titans.data.synthetic.text_pieces import TextPieces
from titans.evaluation import perplexity
from titans.evaluation.calibration import calibrate
from titans.evaluation.model_zoo import make_model
from titans.evaluation.results import save_result
from titans.evaluation.synthetic_training import Budget, train_on
from titans.training.pretrained import load_model

LENGTH, ROWS = 512, 4
DOCUMENT, TEST, CALIBRATION = 4_096, 24_576, 8_192  # characters of a document, of all to test on; tokens per half


def split(corpus: list[Document]) -> tuple[list[Document], list[Document], list[Document]]:
    """Divide documents into those to train on, every twentieth to calibrate on, and every twentieth to test on."""
    train = [d for i, d in enumerate(corpus) if i % 20 not in (5, 15)]
    return train, corpus[5::20], corpus[15::20]


def beginnings(corpus: list[Document], size: int) -> list[Document]:
    """Take the beginnings of the longest documents, of `DOCUMENT` characters each and `size` in all."""
    texts = sorted((d.text() for d in corpus), key=len, reverse=True)[: size // DOCUMENT]
    return [Document("", lambda text=text[:DOCUMENT]: iter((text,))) for text in texts]


def train(variant: str, corpus: list[Document], steps: int) -> Any:
    """Return a model of some hundred thousand parameters, trained on bytes."""
    fields = {
        "variant": variant, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "segment_length": 64,
        "num_persistent_tokens": 4, "memory": {"chunk_size": 32}, "bos_token_id": 256, "eos_token_id": 257,
        "pad_token_id": 258,
    }  # fmt: skip
    model = make_model(fields, 259)
    train_on(model, TextPieces.read(corpus), [Size(LENGTH)], Budget(steps, ROWS))
    return model


def measure(model: Any, tokenizer: Any, calibration: list[Document], test: list[Document]) -> dict[str, Any]:
    """Calibrate, then read the test documents under each policy; speed is in processor time."""
    found = calibrate(model, tokenizer, calibration, tokens=CALIBRATION)
    results: dict[str, Any] = {"policy": dataclasses.asdict(found.policy), "rounds": found.rounds}
    for policy in (WritePolicy("always"), found.policy, WritePolicy("never")):
        start = time.process_time()
        result = perplexity(model, tokenizer, test, policy=policy)
        speed = result.tokens / (time.process_time() - start)
        results[policy.write] = {"tokens_per_second": speed, **dataclasses.asdict(result)}
        print(f"  {policy.write:6}  perplexity {result.perplexity:.4f}  {speed:,.0f} tokens/s  {result.writing}")
    return results


def plot(results: dict[str, Any]) -> Figure:
    """Draw the loss by position in the document under each policy."""
    drawn, all_axes = plots.figure(len(results), size=(9, 3.5))
    for axes, (name, result) in zip(all_axes, results.items(), strict=True):
        for number, write in enumerate(("always", "gated", "never")):
            buckets = [b for b in result[write]["positions"] if b["first"] >= 16]
            plots.line(axes, [b["first"] for b in buckets], [b["loss"] for b in buckets], number, label=write)
        axes.set(xscale="log", title=name, xlabel="tokens before the predicted one", ylabel="nats per token")
        plots.legend(axes)
    return drawn


def main() -> None:
    """Train or load, measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", help="model folders; default: train an LMM and a MAC")
    parser.add_argument("--data", nargs="+", help="text; default: Python's own")
    parser.add_argument("--steps", type=int, default=240, help="training of each model; default 240")
    parser.add_argument("--out", type=Path, default=Path("docs/lab-notes/writing"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the operations are too small to share
    corpus = list(documents(arguments.data) if arguments.data else standard_library())
    to_train, to_calibrate, to_test = split(corpus)
    to_calibrate, to_test = beginnings(to_calibrate, 2 * CALIBRATION), beginnings(to_test, TEST)
    results = {}
    for name in arguments.models or ("lmm", "mac"):
        print(name)
        if arguments.models:
            model, tokenizer, steps = load_model(name), load_tokenizer(name), None
        else:
            model, tokenizer, steps = train(name, to_train, arguments.steps), byte_tokenizer(), arguments.steps
        results[name] = {"steps": steps, **measure(model, tokenizer, to_calibrate, to_test)}
    save_result(arguments.out, "results", results, plot(results), picture="positions")


if __name__ == "__main__":
    main()
