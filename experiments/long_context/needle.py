"""S-NIAH in bytes: small models trained on its texts at up to 1,024 bytes, asked for needles at 2 K to 16 K.

    python experiments/long_context/needle.py PATH/TO/books

The haystack of the test is another book than those of the training; keys and values are drawn anew. Models and answers
are kept below --work: the same command goes on where it was interrupted, and several at a time, of different --models,
share them. A length is not asked of a model that found less than a tenth of the needles at the one before.
"""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import ClassVar

import torch
from report import command, plot, pooled
from small_models import MODELS, TEST_BOOK, WRITE_COST, trained, training_books
from torch import Tensor

from titans.data.books import Words, read_words, sentence_starts
from titans.data.packing import IGNORED
from titans.data.ruler import make_ruler_task
from titans.data.synthetic.task import Size, SyntheticTask, parse_sizes
from titans.data.tokenizers import byte_tokenizer
from titans.evaluation.results import save_result
from titans.evaluation.ruler import run_ruler
from titans.evaluation.streaming_lm import StreamingLM
from titans.evaluation.synthetic_training import Budget

DENSE = 384  # bytes up to which a training text repeats its needle
TASKS = ("pk", "n", "w")
SIZES = parse_sizes([192, 192, *[384] * 6, 640, 1024])
BUDGET = Budget(steps=700, batch=16, write_cost=WRITE_COST, curriculum=True)
LENGTHS = (2048, 4096, 8192, 16_384)
LEAST = 0.1  # share of needles below which greater lengths are not asked


@dataclasses.dataclass(frozen=True)
class NeedleTexts(SyntheticTask):
    """The texts of S-NIAH, each from a random sentence of a book on, with labels on the value alone.

    The shortest are not whole: they repeat, after a few words each time, the end of the answer's beginning and the
    value. A loss at single answers teaches nothing at first.

    Args:
        words: of the books.
    """

    name: ClassVar[str] = "needle-texts"
    kind: ClassVar[str] = "recall"

    words: Words

    @property
    def vocab_size(self) -> int:
        """All bytes, and the tokens that start, end and fill texts."""
        return 259

    @property
    def chance(self) -> float:
        """A digit."""
        return 0.1

    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make texts, see `SyntheticTask.batch`."""
        chance = random.Random(int(torch.randint(2**62, (), generator=generator)))
        texts = [self._text(size.length, chance) for _ in range(rows)]
        ids = torch.tensor([[256, *text] for text, _ in texts])
        asked = torch.tensor([[False, *asked] for _, asked in texts])
        return ids[:, :-1], ids[:, 1:].masked_fill(~asked[:, 1:], IGNORED)

    def _text(self, length: int, chance: random.Random) -> tuple[bytes, list[bool]]:
        start = chance.choice(self.words.starts[:-length])
        words = self.words.words[start : start + length]
        part = Words(words, tuple(sentence_starts(words)), self.words.gutenberg)
        task = make_ruler_task(chance.choice(TASKS), lambda text: len(text.encode()), part)
        dense = length <= DENSE
        sample = task.sample((2 * DENSE if dense else length) + task.new_tokens - 40, 0, chance.getrandbits(32))
        parts = repeated(sample.text, words, length, chance) if dense else [sample.text]
        text, asked = bytearray(), list[bool]()
        for part_of_text in parts:
            for piece, is_answer in ((part_of_text, False), (f" {sample.references[0]}.", True)):
                text += piece.encode()
                asked += [is_answer] * len(piece.encode())
        missing = max(0, length - len(text))
        return bytes(text[:length]) + b" " * missing, asked[:length] + [False] * missing


def repeated(text: str, words: tuple[str, ...], length: int, chance: random.Random) -> list[str]:
    """Return the needle of a text, and after it, often, some words and the end of the answer's beginning."""
    found = re.search(r"One of the special magic .*?\.", text)
    assert found is not None
    beginning = text[text.rindex("The special magic") :]
    parts = []
    for number in range(length // 8):
        some = " ".join(words[5 * number :][: chance.randrange(5)])
        parts.append(f"{'' if number else found[0]} {some}{beginning[-chance.randint(3, 20) :]}")
    return parts


def test(name: str, seed: int, books: Path, samples: int, lengths: list[int], work: Path) -> dict[str, dict[int, int]]:
    """Return how many needles a model finds, by task and length; it is trained first where it has not been yet."""
    tokenizer, folder = byte_tokenizer(), work / f"{name}-{seed}"
    model = trained(
        name, tokenizer, lambda: NeedleTexts(read_words(training_books(books))), SIZES, BUDGET, seed, folder
    )
    lm, words, found = StreamingLM(model, tokenizer), read_words([books / TEST_BOOK]), dict[str, dict[int, int]]()
    for task in TASKS:
        found[task] = {}
        for length in lengths:
            result = run_ruler(lm, [task], [length], words, samples=samples, folder=folder / "answers")
            found[task][length] = right = round(sum(answer.score for answer in result.answers))
            print(f"{name}, seed {seed}, {task} at {length:,}: {right} of {samples}", flush=True)
            if right < LEAST * samples:
                break
    return found


def main() -> None:
    """Train and test what is missing, and write `needle.json` and `needle.png`."""
    parser = command("needle", __doc__, MODELS)
    parser.add_argument("books", type=Path, help="folder of the nine novels that docs/lab-notes/baselines.md lists")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--samples", type=int, default=30, help="of each task, length and seed")
    arguments = parser.parse_args()
    models = {}
    for name in arguments.models:
        found = {
            seed: test(name, seed, arguments.books, arguments.samples, sorted(arguments.lengths), arguments.work)
            for seed in arguments.seeds
        }
        models[name] = {
            task: pooled({seed: right[task] for seed, right in found.items()}, arguments.samples) for task in TASKS
        }
    panels = {task: {name: tasks[task] for name, tasks in models.items()} for task in TASKS}
    settings = {"samples": arguments.samples, "seeds": arguments.seeds, "test_book": TEST_BOOK}
    save_result(arguments.out, "needle", settings | {"models": models}, plot(panels))


if __name__ == "__main__":
    main()
