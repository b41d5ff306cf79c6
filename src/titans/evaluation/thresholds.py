"""Thresholds of surprise above which the memories of a model write a given share of what they read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from titans.layers.writing import FOLLOWING
from titans.models.watching import watch
from titans.models.write_policy import WritePolicy

ROUNDS = 8
TOLERANCE = 0.03  # how far the written share may lie from the one that the percentile asks for
PIECE_LENGTH = 2048
Surprise = list[list[np.ndarray]]  # gradient norms of each memory layer and document
Tell = Callable[[str, int], None]  # what is being done, and how many tokens were read since the last call


def find_thresholds(
    model: Any, texts: list[Tensor], percentile: float = 70.0, tell: Tell = lambda doing, tokens: None
) -> tuple[WritePolicy, tuple[float, ...], Surprise]:
    """Measure thresholds, and again under themselves, until the share written is as the percentile asks for.

    The policy, the share that was written in each round, and the surprise of the round that counts come back.
    """
    target = 1 - percentile / 100
    surprise, everything = gradient_norms(
        model, texts, WritePolicy("always"), partial(tell, "surprise where everything is written")
    )
    searches = [ThresholdSearch(target) for _ in everything]
    found: list[tuple[float, WritePolicy, Surprise]] = []
    for i in range(ROUNDS):
        policy = gated_policy(surprise, searches)
        surprise, shares = gradient_norms(
            model, texts, policy, partial(tell, f"thresholds, round {i + 1} of at most {ROUNDS}")
        )
        for search, threshold, written in zip(searches, policy.threshold, shares, strict=True):
            search.learn(threshold, written)
        found.append((sum(shares) / len(shares), policy, surprise))
        if abs(found[-1][0] - target) <= TOLERANCE:
            break
    _, policy, surprise = min(found, key=lambda x: abs(x[0] - target))
    return policy, tuple(share for share, _, _ in found), surprise


class ThresholdSearch:
    """Looks for the threshold of one layer under which a share of the tokens, the target, is written."""

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


def gated_policy(surprise: Surprise, searches: list[ThresholdSearch]) -> WritePolicy:
    """Make the policy that gradient norms and the searches of each layer ask for."""
    norms = [np.concatenate(documents) for documents in surprise]
    mean, deviation = tuple(float(x.mean()) for x in norms), tuple(float(x.std()) for x in norms)
    policy = WritePolicy("gated", mean, mean, deviation)
    smoothed = [np.concatenate(documents) for documents in smooth_surprise(policy, surprise)]
    layers = zip(searches, smoothed, norms, strict=True)
    return dataclasses.replace(policy, threshold=tuple(search.choose(kept, len(x)) for search, kept, x in layers))


def smooth_surprise(policy: WritePolicy, surprise: Surprise) -> Surprise:
    """Smooth the surprise of each document as the policy does, dropped tokens left out."""
    found: Surprise = []
    for documents, mean, deviation in zip(surprise, policy.mean, policy.deviation, strict=True):
        found.append([_smooth(policy, norms, mean, deviation) for norms in documents])
    return found


def _smooth(policy: WritePolicy, norms: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    """Smooth one document `[n]`, as `titans.layers.writing.decide` does."""
    smoothed, variance, values = mean, deviation**2, []
    for g in norms.tolist():
        above = g - mean
        if above <= policy.largest_z * math.sqrt(variance):
            smoothed = policy.smoothing * smoothed + (1 - policy.smoothing) * g
            values.append(smoothed)
        mean += (1 - FOLLOWING) * above
        variance = FOLLOWING * variance + (1 - FOLLOWING) * above**2
    return np.array(values)


def gradient_norms(
    model: Any, texts: list[Tensor], policy: WritePolicy, tell: Callable[[int], None]
) -> tuple[Surprise, list[float]]:
    """Gradient norms of every layer and text under a policy, and the share that each layer wrote."""
    traces = []
    tell(0)
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
