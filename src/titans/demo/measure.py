"""What the demonstration measures of a trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from titans.data.corpora import Document
from titans.data.recall import RecallEpisodes
from titans.data.tokenizers import byte_tokenizer
from titans.demo.experiment import WINDOW, Plan, Trained
from titans.evaluation.perplexity import PerplexityResult, perplexity
from titans.evaluation.recall import RecallResult, recall

DISTANCES = tuple(WINDOW * factor for factor in (1, 4, 16, 64))
TEST_DOCUMENT = 4096  # bytes of held-out text that are read as one document
PROMPT = "The "


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurements of one contestant.

    Args:
        text: loss on held-out text, by position.
        recall: answers by distance.
        sample: text it wrote.
        state_bytes: bytes of memory state per stream.
    """

    text: PerplexityResult
    recall: list[RecallResult]
    sample: str
    state_bytes: int


def measure(trained: Trained, held_out: Tensor, plan: Plan, progress: Callable[[str], None]) -> Measured:
    """Measure a trained model on text and facts it has not seen.

    Args:
        trained: the model.
        held_out: bytes of text.
        plan: how much to measure.
        progress: called with what is being done.

    Returns:
        The measurements.
    """
    model = trained.model
    progress("predicting held-out text")
    test = held_out[: plan.test_bytes]
    documents = [_document(i, piece) for i, piece in enumerate(test.split(TEST_DOCUMENT))]
    text = perplexity(model, byte_tokenizer(), documents)
    results = []
    for distance in DISTANCES:
        progress(f"recall over {distance:,} bytes")
        prompts, answers = RecallEpisodes(held_out, seed=3).probe(plan.questions, distance)
        results.append(recall(model, prompts, answers, distance))
    progress("writing text")
    return Measured(text, results, _sample(trained), model.initial_state(1).nbytes)


def _document(number: int, piece: Tensor) -> Document:
    text = bytes(piece.tolist()).decode("utf-8", errors="replace")
    return Document(f"held-out piece {number}", lambda: iter((text,)))


def _sample(trained: Trained, length: int = 240) -> str:
    torch.manual_seed(4)
    prompt = torch.tensor([list(PROMPT.encode())])
    ids = trained.model.generate(prompt, max_new_tokens=length, do_sample=True, temperature=0.7, top_k=0)
    return bytes(i for i in ids[0].tolist() if i < 256).decode("utf-8", errors="replace")
