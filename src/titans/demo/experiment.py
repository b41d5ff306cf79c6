"""Train Titans models and an attention-only twin on real text mixed with recall episodes."""

from __future__ import annotations

import dataclasses
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from titans.data.corpora import Document
from titans.data.synthetic.fact_recall import RecallEpisodes
from titans.errors import TitansError
from titans.models.configuration import TitansConfig
from titans.models.modeling import TitansForCausalLM

WINDOW = 16  # bytes in view of the attention
HELD_OUT = 0.05  # share of the corpus that is not trained on
LEARNING_RATE = 4e-3
WARM_UP = 0.1  # share of the training
TIME_SHARE = {"mac": 1.0, "lmm": 0.55, "swa": 0.35}  # the slowest has a core of its own, the others share one


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long the demonstration works.

    Args:
        steps: training steps of each model.
        seconds: training of a MAC model ends early after so long, of a faster one after its share of that.
        lengths: bytes per sequence, as training goes on.
        text_bytes: bytes of text per step.
        recall_bytes: bytes of recall episodes per step.
        questions: recall questions per distance.
        test_bytes: bytes of held-out text to predict.
    """

    steps: int
    seconds: float
    lengths: tuple[int, ...]
    text_bytes: int
    recall_bytes: int
    questions: int
    test_bytes: int


FULL = Plan(
    steps=500,
    seconds=450,
    lengths=(64, 64, 64, 128, 256),
    text_bytes=1024,
    recall_bytes=3072,
    questions=100,
    test_bytes=64 * 1024,
)
QUICK = dataclasses.replace(FULL, steps=20, seconds=15, questions=20, test_bytes=8 * 1024)


@dataclasses.dataclass(frozen=True)
class Point:
    """One logged training step: bytes read so far, bits per byte of text, and nats per recall answer."""

    bytes: int
    text_bits: float
    recall_loss: float


@dataclasses.dataclass(frozen=True)
class Training:
    """How a model was trained.

    Args:
        curve: logged steps.
        steps: steps taken.
        seconds: time taken.
        bytes_per_second: bytes read per second, text and episodes.
    """

    curve: list[Point]
    steps: int
    seconds: float
    bytes_per_second: float


def configurations() -> dict[str, TitansConfig]:
    """Return the models, of equal attention window and equal number of parameters (within 1 %)."""
    mac = _configuration("mac", 192)
    return {"Titans MAC": mac, "Titans LMM": _twin("lmm", mac), "attention only": _twin("swa", mac)}


def _twin(variant: str, other: TitansConfig) -> TitansConfig:
    """Configure a variant whose feed-forward layers make it as large as another model."""
    spare = parameters(other) - parameters(_configuration(variant, 1))
    unit = 3 * other.hidden_size * other.num_hidden_layers  # parameters per unit of feed-forward width
    return _configuration(variant, 1 + round(spare / unit))


def _configuration(variant: str, intermediate_size: int) -> TitansConfig:
    return TitansConfig(
        variant=variant,
        vocab_size=259,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=intermediate_size,
        segment_length=WINDOW,
        sliding_window=WINDOW,
        num_persistent_tokens=4,
        memory_depth=1,
        memory_rule="token",
        memory_chunk_size=WINDOW,
        memory_gate_floor=0.15,  # else every byte of a text longer than those of the training is written a little
        rope_theta=100.0,
        tie_word_embeddings=False,  # with tied ones attention takes several times as long to learn recall
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
    )


def parameters(config: TitansConfig) -> int:
    """Count the parameters of a configuration without making them."""
    with torch.device("meta"):
        return TitansForCausalLM(config).num_parameters()


def read_corpus(documents: Iterator[Document], limit: int = 20_000_000) -> tuple[Tensor, Tensor]:
    """Read documents into bytes.

    Args:
        documents: the corpus.
        limit: read no more than so many bytes. Default 20 MB.

    Returns:
        The part to train on and the held-out end, int64.

    Raises:
        TitansError: there is too little text.
    """
    parts, size = [], 0
    for document in documents:
        for block in document.blocks():
            parts.append(block.encode())
            size += len(parts[-1])
        if size > limit:
            break
    text = torch.frombuffer(bytearray(b"\n".join(parts)[:limit]), dtype=torch.uint8).long()
    held_out = int(len(text) * HELD_OUT)
    if held_out < 64 * WINDOW:
        raise TitansError(
            f"the corpus holds {len(text):,} bytes of text: the demo needs at least {int(64 * WINDOW / HELD_OUT):,}"
        )
    return text[:-held_out], text[-held_out:]


def train(model: TitansForCausalLM, text: Tensor, plan: Plan, progress: Callable[[float, Point], None]) -> Training:
    """Train one model.

    Each step sums the loss of a batch of text and that of a batch of recall episodes, drawn with the same seeds for
    every model. Where time runs short, lengths and learning rates run through their schedule in fewer steps.

    Args:
        model: the model; left in evaluation mode.
        text: bytes to train on.
        plan: how long.
        progress: called with the share of the training done and the last point of the curve.

    Returns:
        How it went.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    episodes, generator = RecallEpisodes(text, seed=1), torch.Generator().manual_seed(2)
    limit = plan.seconds * TIME_SHARE[model.config.variant]
    curve, read, step, start = [], 0, 0, time.monotonic()
    while (done := max(step / plan.steps, (time.monotonic() - start) / limit)) < 1:
        length = plan.lengths[int(done * len(plan.lengths))]
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((done + 0.01) / WARM_UP, 1.0, 1.01 - done)
        asked, answers = episodes.batch(plan.recall_bytes // length, length)
        plain = _text_batch(text, plan.text_bytes // length, length, generator)
        text_loss, recall_loss = model(plain, labels=plain).loss, model(asked, labels=answers).loss
        optimizer.zero_grad()
        (text_loss + recall_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        read, step = read + asked.numel() + plain.numel(), step + 1
        if step % 10 == 1 or step == plan.steps:
            curve.append(Point(read, float(text_loss.detach()) / math.log(2), float(recall_loss.detach())))
        progress(done, curve[-1])
    progress(1.0, curve[-1])
    model.train(False)
    seconds = time.monotonic() - start
    return Training(curve, step, seconds, read / seconds)


def _text_batch(text: Tensor, rows: int, length: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - length, (rows, 1), generator=generator)
    return text[starts + torch.arange(length)]


def peak_memory() -> int:
    """Return the most memory this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
