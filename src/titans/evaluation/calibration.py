"""Calibration of gated writing: thresholds from the surprise that a model's memories meet, decay by perplexity."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from titans.data.corpora import Document
from titans.data.tokenizers import check_vocabulary, encode_pieces
from titans.error_text import refused_as
from titans.errors import TitansError
from titans.evaluation.perplexity import predict

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from titans.models.write_policy import WritePolicy

DECAYS = (1e-5, 3e-5, 5e-5)
ROUNDS = 8
TOLERANCE = 0.03  # how far the written share may lie from the one that the percentile asks for
PIECE_LENGTH = 2048
LEAST_TOKENS = 256  # a percentile of fewer would say nothing
Progress = Callable[[float, str], None]  # the share of the work done, and what comes next
Surprise = list[list[np.ndarray]]  # gradient norms of each memory layer and document


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
        folder.mkdir(parents=True, exist_ok=True)
        report = {
            "policy": dataclasses.asdict(self.policy),
            "best": self.best,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "readings": [dataclasses.asdict(reading) for reading in self.readings],
        }
        (folder / "calibration.json").write_text(json.dumps(report, indent=2) + "\n")
        _plot(self, folder / "surprise.png")


def calibrate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[Document],
    *,
    percentile: float = 70.0,
    tokens: int = 16_384,
    progress: Progress | None = None,
) -> Calibration:
    """Find the policy under which a model writes only what surprises it (semantics, section 6).

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
    import torch

    from titans.models.write_policy import WritePolicy, write_counts

    check_vocabulary(tokenizer, model.config.vocab_size)
    layers = write_counts(model.initial_state(1))[0].layers
    if not layers:
        raise TitansError(f"a model of variant {model.config.variant} has no memory layer: there is nothing to gate")
    first, second = _halves(tokenizer, documents, tokens)
    sizes = (sum(map(len, first)), sum(map(len, second)))
    tell = _Telling(progress, (1 + ROUNDS) * sizes[0] + (2 + len(DECAYS)) * sizes[1])
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), refused_as("the model cannot read the text"):
            policy, rounds, surprise = find_thresholds(model, first, percentile, tell)
            gated = [dataclasses.replace(policy, decay=decay) for decay in DECAYS]
            names = ["always", "never", *(f"gated, decay {decay:.0e}" for decay in DECAYS)]
            policies = [WritePolicy("always"), WritePolicy("never"), *gated]
            readings = [_read(model, second, p, name, tell) for p, name in zip(policies, names, strict=True)]
    finally:
        model.train(was_training)
    lowest = min(range(len(policies)), key=lambda i: readings[i].perplexity)
    decay = min(range(len(DECAYS)), key=lambda i: readings[2 + i].perplexity)
    smoothed = tuple(np.concatenate(x) for x in _smoothed(policy, surprise))
    return Calibration(gated[decay], policies[lowest].write, sizes, rounds, tuple(readings), smoothed)


def _halves(tokenizer: Any, documents: Iterable[Document], tokens: int) -> tuple[list[Tensor], list[Tensor]]:
    """Read at most twice so many tokens and cut them in the middle: the documents of both parts, `[n]` each."""
    import torch

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


def find_thresholds(
    model: Any, texts: list[Tensor], percentile: float = 70.0, tell: _Telling | None = None
) -> tuple[WritePolicy, tuple[float, ...], Surprise]:
    """Measure thresholds, and again under themselves, until the share written is as the percentile asks for.

    Args:
        model: a causal language model of this package with memory layers, in evaluation mode.
        texts: the tokens of each document, `[n]`.
        percentile: of the smoothed surprise. Default 70: about 30 % is written.
        tell: told of the work done. Default: nothing.

    Returns:
        The policy, the share that was written in each round, and the surprise of the round that counts.
    """
    from titans.models.write_policy import WritePolicy

    tell = tell or _Telling(None, 1)
    target = 1 - percentile / 100
    surprise, everything = _watched(model, texts, WritePolicy("always"), tell("surprise where everything is written"))
    searches = [_Search(target) for _ in everything]
    found: list[tuple[float, WritePolicy, Surprise]] = []
    for i in range(ROUNDS):
        policy = _policy(surprise, searches)
        surprise, shares = _watched(model, texts, policy, tell(f"thresholds, round {i + 1} of at most {ROUNDS}"))
        for search, threshold, written in zip(searches, policy.threshold, shares, strict=True):
            search.learn(threshold, written)
        found.append((sum(shares) / len(shares), policy, surprise))
        if abs(found[-1][0] - target) <= TOLERANCE:
            break
    _, policy, surprise = min(found, key=lambda x: abs(x[0] - target))
    return policy, tuple(share for share, _, _ in found), surprise


class _Search:
    """Looks for the threshold of one layer under which a share of the tokens is written.

    Args:
        target: the share.
    """

    def __init__(self, target: float) -> None:
        self.target = self.asked = target
        self.low, self.high = -math.inf, math.inf  # thresholds under which too much was written, and too little

    def choose(self, kept: np.ndarray, tokens: int) -> float:
        """Choose the next threshold from smoothed surprise `kept`, of `tokens` tokens of which some were dropped."""
        if math.isfinite(self.low + self.high):  # known to lie in between
            return (self.low + self.high) / 2
        threshold = float(np.quantile(kept, 1 - min(self.asked * tokens / len(kept), 1)))
        if self.low < threshold < self.high:
            return threshold
        step = float(kept.std())
        return self.low + step if math.isfinite(self.low) else self.high - step

    def learn(self, threshold: float, written: float) -> None:
        """Note which share was written under a threshold; ask for more or less than the target to make up for it."""
        if written > self.target:
            self.low = max(self.low, threshold)
        else:
            self.high = min(self.high, threshold)
        self.asked = min(self.asked * min(max(self.target / max(written, 0.01), 0.5), 2.0), 0.99)


def _policy(surprise: Surprise, searches: list[_Search]) -> WritePolicy:
    """Make the policy that gradient norms and the searches ask for."""
    from titans.models.write_policy import WritePolicy

    norms = [np.concatenate(documents) for documents in surprise]
    mean, deviation = tuple(float(x.mean()) for x in norms), tuple(float(x.std()) for x in norms)
    policy = WritePolicy("gated", mean, mean, deviation, decay=DECAYS[0])
    smoothed = [np.concatenate(documents) for documents in _smoothed(policy, surprise)]
    layers = zip(searches, smoothed, norms, strict=True)
    return dataclasses.replace(policy, threshold=tuple(search.choose(kept, len(x)) for search, kept, x in layers))


def _smoothed(policy: WritePolicy, surprise: Surprise) -> Surprise:
    """Smooth the surprise of each document as the policy does, dropped tokens left out."""
    found: Surprise = []
    for documents, mean, deviation in zip(surprise, policy.mean, policy.deviation, strict=True):
        found.append([_smooth(policy, norms, mean, deviation) for norms in documents])
    return found


def _smooth(policy: WritePolicy, norms: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    """Smooth one document `[n]`, as `titans.layers.writing.decide` does."""
    from titans.layers.writing import FOLLOWING

    smoothed, variance, values = mean, deviation**2, []
    for g in norms.tolist():
        above = g - mean
        if above <= policy.largest_z * math.sqrt(variance):
            smoothed = policy.smoothing * smoothed + (1 - policy.smoothing) * g
            values.append(smoothed)
        mean += (1 - FOLLOWING) * above
        variance = FOLLOWING * variance + (1 - FOLLOWING) * above**2
    return np.array(values)


def _watched(
    model: Any, texts: list[Tensor], policy: WritePolicy, tell: Callable[[int], None]
) -> tuple[Surprise, list[float]]:
    """Gradient norms of every layer and text under a policy, and the share that each layer wrote."""
    from titans.models.watching import watch

    traces = []
    for ids in texts:
        state = policy.start(model.initial_state(1))
        with watch(model) as trace:
            for piece in ids.to(model.device).split(PIECE_LENGTH):
                state = model(piece[None], cache=state, use_cache=True, logits_to_keep=1).cache
                tell(len(piece))
        traces.append([trace.layer(i, 0) for i in range(trace.layers)])
    by_layer = list(zip(*traces, strict=True))
    norms = [[trace.surprise.double().numpy() for trace in layer] for layer in by_layer]
    return norms, [float(np.concatenate([trace.written.numpy() for trace in layer]).mean()) for layer in by_layer]


def _read(model: Any, texts: list[Tensor], policy: WritePolicy, name: str, tell: _Telling) -> Reading:
    """Predict texts under a policy."""
    advance, start = tell(name), time.perf_counter()
    losses = predict(model, map(_pieces, texts), policy, advance)
    seconds, counts = time.perf_counter() - start, losses.writing
    assert counts is not None  # there is a policy
    shares = (x / counts.total for x in (counts.written, counts.skipped, counts.dropped))
    return Reading(name, losses.perplexity, losses.tokens / seconds, *shares)


def _pieces(ids: Tensor) -> Iterable[list[int]]:
    """Cut a text: the last token of a piece is the first of the next."""
    return (ids[first : first + PIECE_LENGTH + 1].tolist() for first in range(0, len(ids) - 1, PIECE_LENGTH))


class _Telling:
    """Tells how far the work is."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, doing: str) -> Callable[[int], None]:
        def advance(tokens: int) -> None:
            self.done += tokens
            if self.progress is not None:
                self.progress(min(self.done / self.total, 1.0), doing)

        advance(0)
        return advance


def _plot(found: Calibration, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.2 * len(found.surprise)), layout="constrained")
    all_axes = figure.subplots(len(found.surprise), squeeze=False)[:, 0]
    for i, (axes, surprise, threshold) in enumerate(zip(all_axes, found.surprise, found.policy.threshold, strict=True)):
        axes.hist(surprise, bins=80, color="tab:blue", alpha=0.7)
        axes.axvline(threshold, color="tab:red", label=f"threshold {threshold:.3g}")
        axes.set_ylabel("tokens")
        axes.set_title(f"memory layer {i}", fontsize="medium")
        axes.legend()
    all_axes[-1].set_xlabel("smoothed surprise: right of the threshold a token is written")
    figure.savefig(path, dpi=120)
