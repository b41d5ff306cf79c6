"""What the demonstration measures of a trained model."""

from __future__ import annotations

import dataclasses
import resource
import sys
from collections.abc import Callable

import torch

from titans.data.corpora import Document
from titans.data.synthetic.fact_recall import FactRecall
from titans.data.synthetic.text_pieces import TextPieces
from titans.data.tokenizers import byte_tokenizer
from titans.demo.experiment import TEST_DOCUMENT, WINDOW, DemoTraining, Plan
from titans.evaluation.perplexity import PerplexityResult, perplexity
from titans.evaluation.synthetic import Score, score
from titans.models.modeling import TitansForCausalLM

DISTANCES = tuple(WINDOW * factor for factor in (1, 4, 16, 64))
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
        recall: answers by the bytes between facts and question.
        sample: text it wrote.
    """

    name: str
    parameters: int
    state_bytes: int
    peak_memory: int
    training: DemoTraining
    text: PerplexityResult
    recall: dict[int, Score]
    sample: str


def measure(
    name: str,
    model: TitansForCausalLM,
    training: DemoTraining,
    held_out: TextPieces,
    plan: Plan,
    progress: Callable[[str], None],
) -> ModelReport:
    """Measure a trained model on text it has not seen and new facts.

    Args:
        name: what to call it.
        model: the model.
        training: how it was trained.
        held_out: the text.
        plan: how much to measure.
        progress: called with what is being done.

    Returns:
        The measurements.
    """
    progress("predicting held-out text")
    content = bytes(held_out.text[: plan.test_bytes].tolist())
    pieces = [content[start : start + TEST_DOCUMENT] for start in range(0, len(content), TEST_DOCUMENT)]
    text = perplexity(model, byte_tokenizer(), [_document(number, piece) for number, piece in enumerate(pieces)])
    facts, recall = FactRecall(held_out.text), {}
    for distance in DISTANCES:
        progress(f"recall over {distance:,} bytes")
        recall[distance] = score(model, facts, facts.size(distance), sequences=plan.questions)
    progress("writing text")
    state_bytes, memory = model.initial_state(1).nbytes, peak_memory()
    return ModelReport(name, model.num_parameters(), state_bytes, memory, training, text, recall, _sample(model))


def peak_memory() -> int:
    """Return the most memory this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _document(number: int, piece: bytes) -> Document:
    return Document(f"held-out piece {number}", lambda: iter((piece.decode("utf-8", errors="replace"),)))


def _sample(model: TitansForCausalLM, length: int = 240) -> str:
    torch.manual_seed(4)
    prompt = torch.tensor([list(PROMPT.encode())])
    ids = model.generate(prompt, max_new_tokens=length, do_sample=True, temperature=0.7, top_k=0)
    return bytes(i for i in ids[0].tolist() if i < 256).decode("utf-8", errors="replace")
