"""BABILong's qa1 to qa4: small models trained on facts in books at up to 1,024 tokens, asked at up to 64,000.

    python experiments/long_context/babilong.py PATH/TO/books PATH/TO/babi

Asked are stories of the official test files, in a book that nothing was trained on; the stories of the training are
made up. The tokenizer, of 1,024 tokens, is made of the books and stories of the training. Models and answers are kept
below --work: the same command goes on where it was interrupted, and several at a time, of different --models, share
them. A length is not asked of a model that was no better than the commonest answer at the one before.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from report import Cells, command, plot, pooled
from small_models import MODELS, TEST_BOOK, WRITE_COST, trained, training_books
from torch import Tensor

from titans.data.babi_tasks import simulate, simulate_questions
from titans.data.babilong import PROMPT_TOKENS, Length
from titans.data.babilong_episodes import BabilongEpisodes
from titans.data.babilong_prompts import bare_prompt
from titans.data.corpora import Document, documents
from titans.data.synthetic.task import Size, SyntheticTask, parse_sizes
from titans.data.tokenizers import load_tokenizer
from titans.evaluation.babilong import run_babilong
from titans.evaluation.babilong_questions import Questions
from titans.evaluation.results import save_result
from titans.evaluation.streaming_lm import StreamingLM
from titans.evaluation.synthetic_training import Budget

TASKS = ("qa1", "qa2", "qa3", "qa4")
VOCABULARY = 1024
QUESTIONS = 6  # tried of each story
BARE = 128  # tokens up to which a training text has no sentences of books
SIZES = parse_sizes([128, 128, 128, 256, 256, 512, 1024])
BUDGET = Budget(steps=1500, batch=24, write_cost=WRITE_COST, curriculum=True)
LENGTHS = ("0k", "2k", "4k", "16k", "64k")


@dataclasses.dataclass(frozen=True, eq=False)
class Facts(SyntheticTask):
    """Stories of bAbI and their questions, one after the other, in book text of up to half the length.

    Args:
        episodes: makes them.
        tokens: of the vocabulary.
    """

    name: ClassVar[str] = "facts"
    kind: ClassVar[str] = "recall"

    episodes: BabilongEpisodes
    tokens: int

    @property
    def vocab_size(self) -> int:
        """The tokenizer's."""
        return self.tokens

    @property
    def chance(self) -> float:
        """One of six rooms."""
        return 1 / 6

    def batch(self, rows: int, size: Size, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Make texts, see `SyntheticTask.batch`."""
        most_filler = size.length // 2 - 1 if size.length > BARE else 0
        ids, labels = self.episodes.batch(rows, size.length + 1, generator, most_filler)
        return ids[:, :-1], labels[:, 1:]


def make_tokenizer(books: list[Document], folder: Path) -> Any:
    """Return the tokenizer of the folder, after making it of the books and of made-up stories where there is none."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    if not folder.exists():
        rng = random.Random(0)
        stories = [simulate(task, rng) for task in TASKS for _ in range(500)]
        told = [bare_prompt(" ".join(s.facts), s.question) + f" {s.answer}." for s in stories]
        core = ByteLevelBPETokenizer()
        text = [block for book in books for block in book.blocks()]
        core.train_from_iterator([*text, *told], vocab_size=VOCABULARY, special_tokens=["<|bos|>", "<|eos|>"])
        make: Any = PreTrainedTokenizerFast  # untyped
        made = make(tokenizer_object=core._tokenizer, bos_token="<|bos|>", eos_token="<|eos|>")
        made.save_pretrained(folder)
    return load_tokenizer(str(folder))


def test(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, dict[int, tuple[int, float]]]:
    """Return right answers and the share of the commonest, by task and length, after training what has not been."""
    books = list(documents(training_books(arguments.books)))
    tokenizer = make_tokenizer(books, arguments.work / "tokenizer")
    draws = [partial(simulate_questions, task, most=QUESTIONS) for task in TASKS]
    folder = arguments.work / f"{name}-{seed}"
    episodes = BabilongEpisodes(tokenizer, draws, books)
    model = trained(name, tokenizer, lambda: Facts(episodes, len(tokenizer)), SIZES, BUDGET, seed, folder)
    lm, found = StreamingLM(model, tokenizer), dict[str, dict[int, tuple[int, float]]]()
    lm.name = name  # else a path, once it has been loaded: answers are kept under the name
    for task in TASKS:
        found[task] = {}
        for length in arguments.lengths:
            questions = Questions(
                (task,),
                (length,),
                arguments.babi,
                str(arguments.books / TEST_BOOK),
                bare=True,
                samples=arguments.samples,
            )
            (score,) = run_babilong(lm, questions, folder / "answers").scores
            found[task][nominal(length)] = score.correct, score.majority
            shares = f"{score.correct} of {score.asked}, the commonest {score.majority:.0%}"
            print(f"{name}, seed {seed}, {task} at {length}: {shares}", flush=True)
            if score.accuracy <= score.majority:
                break
    return found


def nominal(length: str) -> int:
    """Return the tokens that a length such as 16k stands for, the prompt's among them."""
    context = Length.parse(length).tokens
    return context and context + PROMPT_TOKENS


def main() -> None:
    """Train and test what is missing, and write `babilong.json` and `babilong.png`."""
    parser = command("babilong", __doc__, MODELS)
    parser.add_argument("books", type=Path, help="folder of the nine novels that docs/lab-notes/baselines.md lists")
    parser.add_argument("babi", type=Path, help="folder of the official bAbI files, as tasks_1-20_v1-2/en")
    parser.add_argument("--lengths", nargs="+", default=list(LENGTHS))
    parser.add_argument("--samples", type=int, default=25, help="questions of each task, length and seed")
    arguments = parser.parse_args()
    models: dict[str, dict[str, Cells]] = {}
    commonest: dict[str, dict[str, float]] = {task: {} for task in TASKS}
    for name in arguments.models:
        found = {seed: test(name, seed, arguments) for seed in arguments.seeds}
        models[name] = {
            task: pooled(
                {seed: {n: right for n, (right, _) in tasks[task].items()} for seed, tasks in found.items()},
                arguments.samples,
            )
            for task in TASKS
        }
        for tasks in found.values():
            for task, by_length in tasks.items():
                commonest[task] |= {str(length): share for length, (_, share) in by_length.items()}
    settings = {"samples": arguments.samples, "seeds": arguments.seeds, "test_book": TEST_BOOK}
    panels = {task: {name: tasks[task] for name, tasks in models.items()} for task in TASKS}
    guesses = {task: max(shares.values()) for task, shares in commonest.items()}
    save_result(arguments.out, "babilong", settings | {"commonest": commonest, "models": models}, plot(panels, guesses))


if __name__ == "__main__":
    main()
