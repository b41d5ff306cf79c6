"""Calibration of gated writing: thresholds from the surprise that a model's memories meet, decay by perplexity."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from titans import plots
from titans.data.corpora import Document
from titans.data.tokenizers import check_vocabulary, encode_pieces
from titans.error_text import refused_as
from titans.errors import TitansError
from titans.evaluation.inference import evaluating
from titans.evaluation.perplexity import predict
from titans.evaluation.progress import Progress, unseen
from titans.evaluation.results import save_result
from titans.evaluation.thresholds import PIECE_LENGTH, ROUNDS, Tell, find_thresholds, smooth_surprise
from titans.models.write_policy import WritePolicy, write_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

DECAYS = (1e-5, 3e-5, 5e-5)
LEAST_TOKENS = 256  # a percentile of fewer would say nothing


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a model read the second part of the data under one policy.

    Args:
        name: what the policy is called.
        perplexity: e to the mean loss.
        tokens_per_second: speed.
        written: share of the tokens, over memory layers, that were written.
        skipped: share that did not surprise.
        dropped: share of outliers.
    """

    name: str
    perplexity: float
    tokens_per_second: float
    written: float
    skipped: float
    dropped: float


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What `calibrate` found.

    Args:
        policy: the gated policy with the lowest perplexity.
        best: "always", "gated" or "never": which had the lowest perplexity of all.
        tokens: tokens of each of the two parts of the data.
        rounds: share of the first part that was written, in each round of thresholds.
        readings: the second part under "always", "never", and gated with each decay.
        surprise: smoothed surprise of each memory layer's tokens, under the thresholds of the policy.
    """

    policy: WritePolicy
    best: str
    tokens: tuple[int, int]
    rounds: tuple[float, ...]
    readings: tuple[Reading, ...]
    surprise: tuple[np.ndarray, ...]

    def save(self, folder: Path) -> None:
        """Write `calibration.json` and the picture `surprise.png`.

        Args:
            folder: made if it does not exist.
        """
        content = dataclasses.asdict(dataclasses.replace(self, surprise=()))
        save_result(folder, "calibration", content, _plot(self), picture="surprise")


def calibrate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[Document],
    *,
    percentile: float = 70.0,
    tokens: int = 16_384,
    progress: Progress = unseen,
) -> Calibration:
    """Find the policy under which a model writes only what surprises it (docs/semantics.md, section 6).

    On a first part of the data, each memory layer's gradient norms give mean and deviation, and the percentile of the
    smoothed surprise is its threshold. Since writing less changes what surprises, the thresholds are searched for
    under themselves, until the share written is as the percentile asks for (± 3 points) or 8 rounds are over; the
    closest round counts. On a second part the decay of the lowest perplexity is chosen, and whether to write always,
    never or under this policy.

    Args:
        model: a causal language model of this package with memory layers; used in evaluation mode.
        tokenizer: its tokenizer.
        documents: text like that which the model will read.
        percentile: of the smoothed surprise, between 0 and 100. Default 70: about 30 % is written.
        tokens: of each of the two parts. Default 16,384.
        progress: told of the work done. Default: nothing.

    Returns:
        The policy, and the measurements behind it.

    Raises:
        TitansError: the model has no memory layer, the data is too small, or the tokenizer does not fit.
    """
    check_vocabulary(tokenizer, model.config.vocab_size)
    layers = write_counts(model.initial_state(1))[0].layers
    if not layers:
        raise TitansError(f"a model of variant {model.config.kind} has no memory layer: there is nothing to gate")
    first, second = halves(tokenizer, documents, tokens)
    sizes = (sum(map(len, first)), sum(map(len, second)))
    total, done = (1 + ROUNDS) * sizes[0] + (2 + len(DECAYS)) * sizes[1], 0

    def tell(doing: str, count: int) -> None:
        nonlocal done
        done += count
        progress(min(done / total, 1.0), doing)

    with evaluating(model), refused_as("the model cannot read the text"):
        policy, rounds, surprise = find_thresholds(model, first, percentile, tell)
        gated = [dataclasses.replace(policy, decay=decay) for decay in DECAYS]
        names = ["always", "never", *(f"gated, decay {decay:.0e}" for decay in DECAYS)]
        policies = [WritePolicy("always"), WritePolicy("never"), *gated]
        readings = [_read(model, second, p, name, tell) for p, name in zip(policies, names, strict=True)]
    lowest = min(range(len(policies)), key=lambda i: readings[i].perplexity)
    decay = min(range(len(DECAYS)), key=lambda i: readings[2 + i].perplexity)
    smoothed = tuple(np.concatenate(x) for x in smooth_surprise(policy, surprise))
    return Calibration(gated[decay], policies[lowest].write, sizes, rounds, tuple(readings), smoothed)


def halves(tokenizer: Any, documents: Iterable[Document], tokens: int) -> tuple[list[Tensor], list[Tensor]]:
    """Read documents up to twice so many tokens, and cut them in the middle, through a document if need be."""
    texts, room = [], 2 * tokens
    for document in documents:
        ids = torch.tensor(next(encode_pieces(tokenizer, document.blocks(), room), []), dtype=torch.int64)
        if len(ids) > 1:  # one alone predicts nothing
            texts.append(ids)
            room -= len(ids)
        if room <= 0:
            break
    total = sum(map(len, texts))
    if total < 2 * LEAST_TOKENS:
        raise TitansError(f"the data holds {total:,} tokens: calibration needs at least {2 * LEAST_TOKENS:,}")
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    left = total // 2
    for text in texts:
        parts[0].append(text[: max(left, 0)])
        parts[1].append(text[max(left, 0) :])
        left -= len(text)
    return tuple([text for text in part if len(text) > 1] for part in parts)  # type: ignore[return-value]


def _read(model: Any, texts: list[Tensor], policy: WritePolicy, name: str, tell: Tell) -> Reading:
    """Predict texts under a policy."""
    tell(name, 0)
    start = time.perf_counter()
    losses = predict(model, map(_pieces, texts), policy, partial(tell, name))
    seconds, counts = time.perf_counter() - start, losses.writing
    assert counts is not None  # there is a policy
    shares = (x / counts.total for x in (counts.written, counts.skipped, counts.dropped))
    return Reading(name, losses.perplexity, losses.tokens / seconds, *shares)


def _pieces(ids: Tensor) -> Iterable[list[int]]:
    """Cut a text: the last token of a piece is the first of the next."""
    return (ids[first : first + PIECE_LENGTH + 1].tolist() for first in range(0, len(ids) - 1, PIECE_LENGTH))


def _plot(found: Calibration) -> Figure:
    layers = len(found.surprise)
    drawn, all_axes = plots.figure(rows=layers, size=(7, 2.2 * layers))
    for i, (axes, surprise, threshold) in enumerate(zip(all_axes, found.surprise, found.policy.threshold, strict=True)):
        axes.hist(surprise, bins=80, color=plots.color(0), alpha=0.7)
        axes.axvline(threshold, color=plots.color(1), label=f"threshold {threshold:.3g}")
        axes.set_ylabel("tokens")
        axes.set_title(f"memory layer {i}", fontsize="medium")
        plots.legend(axes)
    all_axes[-1].set_xlabel("smoothed surprise: right of the threshold a token is written")
    return drawn
