"""Language: small models trained on books at up to 1,024 bytes, and their loss by position up to 64 K.

    python experiments/long_context/language.py PATH/TO/text

The folder holds `books` (the nine novels that docs/lab-notes/baselines.md lists), `wikitext-2.valid.txt` and
`lambada_test.jsonl`. Loss by position is that of four pieces of 65,536 bytes of a book that nothing was trained on,
each read with a fresh memory. Models and results are kept below --work: the same command goes on where it was
interrupted, and several at a time, of different --models, share them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from report import command
from small_models import GATE_FLOOR, MODELS, TEST_BOOK, trained, training_books

from titans import plots
from titans.data.books import strip_gutenberg
from titans.data.corpora import Document, documents
from titans.data.synthetic.task import parse_sizes
from titans.data.synthetic.text_pieces import TextPieces
from titans.data.tokenizers import byte_tokenizer
from titans.evaluation.language import evaluate_language
from titans.evaluation.perplexity import perplexity
from titans.evaluation.results import save_result
from titans.evaluation.streaming_lm import StreamingLM
from titans.evaluation.synthetic_training import Budget
from titans.io import atomic
from titans.models.modeling import TitansForCausalLM

SIZES = parse_sizes([256, 512, 1024])
BUDGET = Budget(steps=300, batch=8, curriculum=True)
PIECES, PIECE_LENGTH = 4, 65_536
CLOSED = ", gates closed"  # in the test, below `GATE_FLOOR`
NAMES = [*MODELS, *(f"{name}{CLOSED}" for name, (fields, _) in MODELS.items() if "rule" in fields.get("memory", {}))]
FEWEST = 64  # bytes whose mean says something
TASKS = {"wikitext": 15, "lambada_openai": 300}  # documents of each


def test(name: str, seed: int, text: Path, work: Path) -> dict[str, Any]:
    """Return what a model lost, in bits per byte, and its results on the tasks; it is trained first if need be."""
    weights = name.removesuffix(CLOSED)
    folder, tokenizer = work / f"{weights}-{seed}", byte_tokenizer()
    books = training_books(text / "books")
    model = trained(weights, tokenizer, lambda: TextPieces.read(documents(books)), SIZES, BUDGET, seed, folder)
    if name != weights:
        model, folder = TitansForCausalLM.from_pretrained(folder, memory={"gate_floor": GATE_FLOOR}), folder / "closed"
        folder.mkdir(exist_ok=True)
    path = folder / "positions.json"
    if not path.exists():
        atomic.write_json(path, dataclasses.asdict(perplexity(model, tokenizer, pieces(text / "books" / TEST_BOOK))))
    book, tasks = json.loads(atomic.read(path)), {}
    for task, limit in TASKS.items():
        answers = folder / task
        answers.mkdir(exist_ok=True)
        lm = StreamingLM(model, tokenizer)
        lm.name = name  # else a path, once it has been loaded: results are kept under the name
        result = evaluate_language(lm, [task], data=text, limit=limit, batch_size=8, max_length=2048, folder=answers)
        tasks[task] = {name: dataclasses.asdict(metric) for name, metric in result.tasks[0].metrics.items()}
    positions = [
        {"from": part["first"], "tokens": part["tokens"], "bits": part["loss"] / math.log(2)}
        for part in book["positions"]
        if part["tokens"] >= FEWEST
    ]
    print(f"{name}, seed {seed}: {book['bits_per_byte']:.3f} bits per byte of the book", flush=True)
    return {"bits_per_byte": book["bits_per_byte"], "positions": positions, "tasks": tasks}


def pieces(book: Path) -> list[Document]:
    """Cut the book, without its frame, into the pieces to predict."""
    (document,) = documents(book)
    # One byte a letter, so that pieces of letters are pieces of bytes.
    content = strip_gutenberg("".join(document.blocks())).encode("ascii", "ignore").decode()
    cuts = [content[number * PIECE_LENGTH : (number + 1) * PIECE_LENGTH] for number in range(PIECES)]
    return [Document(f"piece {number + 1}", lambda cut=cut: iter((cut,))) for number, cut in enumerate(cuts)]


def plot(models: dict[str, dict[str, dict[str, Any]]]) -> Figure:
    """Draw the bits per byte by position, one line a model, seeds averaged."""
    drawn, (axes,) = plots.figure(size=(8.5, 4.2))
    for number, (name, seeds) in enumerate(models.items()):
        runs = [seed["positions"] for seed in seeds.values()]
        places = [part["from"] for part in runs[0]]
        bits = [math.fsum(part["bits"] for part in at) / len(at) for at in zip(*runs, strict=True)]
        plots.line(axes, places, bits, number, label=name)
    axes.axvline(1024, color=plots.MUTED, linestyle=":", label="longest in training")
    axes.set(xscale="log", xlabel="bytes before (from this many to twice as many)", ylabel="bits per byte")
    plots.legend(drawn, loc="outside right center", fontsize="small")
    return drawn


def main() -> None:
    """Train and test what is missing, and write `language.json` and `language.png`."""
    parser = command("language", __doc__, NAMES)
    parser.add_argument("text", type=Path, help="folder of books, WikiText-2's validation part and LAMBADA's test")
    arguments = parser.parse_args()
    models = {
        name: {str(seed): test(name, seed, arguments.text, arguments.work) for seed in arguments.seeds}
        for name in arguments.models
    }
    settings = {"seeds": arguments.seeds, "test_book": TEST_BOOK, "documents": TASKS}
    save_result(arguments.out, "language", settings | {"models": models}, plot(models))


if __name__ == "__main__":
    main()
