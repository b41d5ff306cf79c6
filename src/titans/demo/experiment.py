"""Train Titans models and an attention-only twin on real text mixed with questions about facts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from titans.data.synthetic.fact_recall import FactRecall
from titans.data.synthetic.task import Size
from titans.data.synthetic.text_pieces import TextPieces
from titans.evaluation.model_zoo import count, matched
from titans.models.modeling import TitansForCausalLM
from titans.training.fit import Moment, fit
from titans.training.objective import Objective, resumed

WINDOW = 16  # bytes in view of the attention
VOCABULARY = 259  # bytes, bos, eos and pad
LEARNING_RATE = 4e-3
TEST_DOCUMENT = 8 * 1024 - 1  # bytes of held-out text that are read as one document
WARM_UP = 0.1  # share of the training
STREAMS_FROM, RESTART = 0.6, 0.25  # pieces of text stand alone, then they go on, four of them on average
TIME_SHARE = {"mac": 1.0, "lmm": 0.55, "swa": 0.35}  # the slowest has a core of its own, the others share one
FIELDS: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "segment_length": WINDOW,
    "sliding_window": WINDOW,
    "num_persistent_tokens": 4,
    # gate_floor: else every byte of a text longer than those of the training is written a little
    "memory": {"chunk_size": WINDOW, "gate_floor": 0.15},
    "rope_theta": 100.0,
    "tie_word_embeddings": False,  # with tied ones attention takes several times as long to learn recall
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long the demonstration works.

    Args:
        steps: training steps of each model.
        seconds: training of a MAC model ends early after so long, of a faster one after its share of that.
        lengths: bytes per sequence, as training goes on.
        text_bytes: bytes of text per step.
        recall_bytes: bytes of questions about facts per step.
        questions: recall questions per distance.
        test_bytes: bytes of held-out text to predict.
        objective: what is made small, the mean over the text and that over the facts. Default: no price on writing,
            whole sequences.
    """

    steps: int
    seconds: float
    lengths: tuple[int, ...]
    text_bytes: int
    recall_bytes: int
    questions: int
    test_bytes: int
    objective: Objective = dataclasses.field(default_factory=Objective)


FULL = Plan(
    steps=700,
    seconds=450,
    lengths=(64, 64, 64, 128, 256),
    text_bytes=1024,
    recall_bytes=3072,
    questions=100,
    test_bytes=16 * TEST_DOCUMENT,
    objective=Objective(write_cost=0.3),  # else facts far back are overwritten by text that no question needs
)
QUICK = dataclasses.replace(FULL, steps=20, seconds=15, questions=20, test_bytes=TEST_DOCUMENT)


@dataclasses.dataclass(frozen=True)
class Point:
    """One logged training step: bytes read so far, bits per byte of text, and nats per recall answer."""

    bytes: int
    text_bits: float
    recall_loss: float


@dataclasses.dataclass(frozen=True)
class DemoTraining:
    """How a model was trained.

    Args:
        curve: logged steps.
        steps: steps taken.
        seconds: time taken.
        bytes_per_second: bytes read per second, text and facts.
    """

    curve: list[Point]
    steps: int
    seconds: float
    bytes_per_second: float


def model_fields() -> dict[str, dict[str, Any]]:
    """Return the models' fields for `make_model`, of equal attention window and number of parameters (within 1 %)."""
    mac, lmm, swa = ({"variant": variant, **FIELDS} for variant in ("mac", "lmm", "swa"))
    mac["intermediate_size"] = 192
    size = count(mac, VOCABULARY)
    return {
        "Titans MAC": mac,
        "Titans LMM": matched(lmm, VOCABULARY, size),
        "attention only": matched(swa, VOCABULARY, size),
    }


def train(
    model: TitansForCausalLM, text: TextPieces, plan: Plan, progress: Callable[[float, Point], None]
) -> DemoTraining:
    """Train one model.

    Each step sums the loss of a batch of text and that of a batch of facts, drawn with the same seeds for every model.
    In the last part text is read in streams that go on from step to step, so that a memory is trained as reading on
    leaves it; questions about facts start with a new one. Where time runs short, lengths and learning rates run through
    their schedule in fewer steps.

    Args:
        model: the model; left in evaluation mode.
        text: to train on.
        plan: how long.
        progress: called with the share of the training done and the last point of the curve.

    Returns:
        How it went.
    """
    facts, generator = FactRecall(text.text).part("train"), torch.Generator().manual_seed(1)
    streams, carried = text.streams(generator), None
    curve: list[Point] = []
    read, last = 0, (0.0, 0.0)

    def rate(moment: Moment) -> float:
        return LEARNING_RATE * min((moment.done + 0.01) / WARM_UP, 1.0, 1.01 - moment.done)

    def losses(model: Any, moment: Moment) -> Iterator[torch.Tensor]:
        nonlocal read, last, carried
        length, done = plan.lengths[int(moment.done * len(plan.lengths))], min(moment.done + 1 / plan.steps, 1.0)
        restart = RESTART if done > STREAMS_FROM else 1.0
        ids, labels, reset = streams.batch(plan.text_bytes // length, length, restart)
        inputs = resumed({"input_ids": ids, "streamed": True, "reset": reset}, carried, model.initial_state)
        size = labels.numel()
        terms = plan.objective.terms(model, inputs, labels, targets=size, tokens=size, done=done)
        yield terms.loss + terms.price
        carried = terms.output.cache.detach()
        text_loss, recall_loss = float(terms.loss.detach()), 0.0
        ids, labels = facts.batch(plan.recall_bytes // length, Size(length), generator)
        for terms in plan.objective.parts(model, ids, labels, done):
            yield terms.loss + terms.price
            recall_loss += float(terms.loss.detach())
        read += size + ids.numel()
        last = text_loss / math.log(2), recall_loss

    def after_step(moment: Moment, loss: float) -> None:
        if moment.step % 10 == 1 or moment.done == 1:
            curve.append(Point(read, *last))
        progress(moment.done, curve[-1])

    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    limit = plan.seconds * TIME_SHARE[model.config.variant]
    done = fit(model, losses, optimizer, steps=plan.steps, rate=rate, seconds=limit, after_step=after_step)
    model.train(False)
    return DemoTraining(curve, done.steps, done.seconds, read / done.seconds)
