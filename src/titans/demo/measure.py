"""What the demonstration measures of a trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from titans.data.corpora import Document
from titans.data.synthetic.fact_recall import RecallEpisodes
from titans.data.tokenizers import byte_tokenizer
from titans.demo.experiment import WINDOW, Plan, Training, peak_memory
from titans.evaluation.fact_recall import RecallResult, recall
from titans.evaluation.perplexity import PerplexityResult, perplexity
from titans.models.modeling import TitansForCausalLM

DISTANCES = tuple(WINDOW * factor for factor in (1, 4, 16, 64))
TEST_DOCUMENT = 4096  # bytes of held-out text that are read as one document
PROMPT = "The "


@dataclasses.dataclass(frozen=True)
class ModelReport:
    """All that the report says of one model.

    Args:
        name: what to call it.
        parameters: how many it has.
        state_bytes: bytes of state per stream.
        peak_memory: most memory its process held, bytes.
        training: how it was trained.
        text: loss on held-out text, by position.
        recall: answers by distance.
        sample: text it wrote.
    """

    name: str
    parameters: int
    state_bytes: int
    peak_memory: int
    training: Training
    text: PerplexityResult
    recall: list[RecallResult]
    sample: str


def measure(
    name: str,
    model: TitansForCausalLM,
    training: Training,
    held_out: Tensor,
    plan: Plan,
    progress: Callable[[str], None],
) -> ModelReport:
    """Measure a trained model on text it has not seen and new facts.

    Args:
        name: what to call it.
        model: the model.
        training: how it was trained.
        held_out: bytes of text.
        plan: how much to measure.
        progress: called with what is being done.

    Returns:
        The measurements.
    """
    progress("predicting held-out text")
    pieces = held_out[: plan.test_bytes].split(TEST_DOCUMENT)
    text = perplexity(model, byte_tokenizer(), [_document(i, piece) for i, piece in enumerate(pieces)])
    results = []
    for distance in DISTANCES:
        progress(f"recall over {distance:,} bytes")
        prompts, answers = RecallEpisodes(held_out, seed=3).test(plan.questions, distance)
        results.append(recall(model, prompts, answers, distance))
    progress("writing text")
    sample = _sample(model)
    state_bytes = model.initial_state(1).nbytes
    return ModelReport(name, model.num_parameters(), state_bytes, peak_memory(), training, text, results, sample)


def _document(number: int, piece: Tensor) -> Document:
    text = bytes(piece.tolist()).decode("utf-8", errors="replace")
    return Document(f"held-out piece {number}", lambda: iter((text,)))


def _sample(model: TitansForCausalLM, length: int = 240) -> str:
    torch.manual_seed(4)
    prompt = torch.tensor([list(PROMPT.encode())])
    ids = model.generate(prompt, max_new_tokens=length, do_sample=True, temperature=0.7, top_k=0)
    return bytes(i for i in ids[0].tolist() if i < 256).decode("utf-8", errors="replace")
