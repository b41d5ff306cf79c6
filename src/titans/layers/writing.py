"""Writing only what surprises: which tokens of a stream a memory takes in (docs/semantics.md, section 6)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from titans.ops.associative_memory import (
    AssociativeMemoryState,
    Decision,
    associative_memory,
    gated_associative_memory,
    read_memory,
    skip_tokens,
)
from titans.ops.associative_memory.recurrence import segment_product
from titans.ops.state import State
from titans.ops.tracing import is_concrete

FOLLOWING = 0.99  # gamma: mean and deviation of the surprise follow a stream over some hundred tokens


class WriteState(State):
    """Which tokens a memory layer writes, and how it has gone so far (docs/semantics.md, section 6); all `[B]`.

    Args:
        threshold: a token is written where the smoothed surprise is above it; -inf writes every token and +inf none,
            and then nothing is measured.
        mean: of the gradient norm, over the last hundred tokens or so.
        deviation: its standard deviation.
        largest_z: a token whose gradient norm lies more deviations than this above the mean so far is dropped.
        smoothing: beta, how much of the smoothed surprise and of the activity stays from token to token.
        decay: lambda, what a written token forgets per unit of activity.
        smoothed: the smoothed surprise `s_t`.
        activity: how much has been written of late, `a_t`.
        written: tokens written so far, int64.
        skipped: tokens left out because they did not surprise, int64.
        dropped: tokens left out as outliers, int64.
    """

    may_be_infinite: ClassVar[tuple[str, ...]] = ("threshold", "largest_z")

    threshold: Tensor
    mean: Tensor
    deviation: Tensor
    largest_z: Tensor
    smoothing: Tensor
    decay: Tensor
    smoothed: Tensor
    activity: Tensor
    written: Tensor
    skipped: Tensor
    dropped: Tensor

    def check(self) -> None:
        """Refuse numbers that no stream has; see `State.check`."""
        slack = torch.finfo(self.decay.dtype).eps  # smoothing and decay have each been rounded
        rules = {
            "threshold": (~self.threshold.isnan(), "a number"),
            "mean": (self.mean.isfinite(), "finite"),
            "deviation": (self.deviation.isfinite() & (self.deviation >= 0), "finite and at least 0"),
            "largest_z": (self.largest_z > 0, "above 0"),
            "smoothing": ((self.smoothing >= 0) & (self.smoothing < 1), "from 0 to below 1"),
            "decay": ((self.decay >= 0) & (self.decay <= 1 - self.smoothing + slack), "from 0 to 1 - smoothing"),
            "smoothed": (self.smoothed.isfinite(), "finite"),
            "activity": (self.activity.isfinite() & (self.activity >= 0), "finite and at least 0"),
            **{n: (getattr(self, n) >= 0, "at least 0") for n in ("written", "skipped", "dropped")},
        }
        for name, (right, expected) in rules.items():
            if not bool(right.all()):
                raise ValueError(f"{name}={getattr(self, name)[~right][0].item()} must be {expected}")


class Written(NamedTuple):
    """What became of the tokens of one call; anything for padding.

    Args:
        y: what was read, `[B, T, H, d]`.
        memory: the memory after the last token.
        writing: the running quantities after it; None where there is no policy.
        surprise: gradient norms `[B, T, H]`; None where they were not asked for.
        written: `[B, T]`, bool; None where all tokens met the same fate.
        dropped: `[B, T]`, bool; None likewise.
        forgotten: share of the memory that each token let decay, the mean over heads, `[B, T]`; None where none did.
    """

    y: Tensor
    memory: AssociativeMemoryState
    writing: WriteState | None
    surprise: Tensor | None
    written: Tensor | None = None
    dropped: Tensor | None = None
    forgotten: Tensor | None = None


Observer = Callable[[Written, Tensor | None], None]  # also given the lengths [B] of the rows, None where all count


def write(
    inputs: tuple[Tensor, ...],
    memory: AssociativeMemoryState,
    writing: WriteState | None,
    mask: Tensor | None,
    measure: bool,
    options: dict[str, Any],
) -> Written:
    """Write what the state's policy lets in and read every token at the memory as of that token.

    Args:
        inputs: q, k, v, theta, alpha and eta, as of `titans.ops.associative_memory`.
        memory: the memory before the tokens.
        writing: the policy and its running quantities; None writes every token.
        mask: `[B, T]`, bool, False for padding; None for none.
        measure: return the gradient norms.
        options: of `titans.ops.associative_memory`: those of the memory network, `rule`, `chunk_size`, `limit_steps`.

    Returns:
        Reads, the memory, and what became of the tokens.
    """
    q, k, v, theta, alpha, eta = inputs
    forgotten = alpha.mean((2, *range(3, alpha.dim())))  # channels, too, where they forget for themselves
    if writing is None or _everywhere(writing, -math.inf):
        y, memory, *surprise = associative_memory(
            q, k, v, theta, alpha, eta, memory, mask=mask, return_surprise=measure, **options
        )
        after = None if writing is None else alike(writing, _count(q, mask), written=True)
        return Written(y, memory, after, surprise[0] if measure else None, forgotten=forgotten)
    if not measure and _everywhere(writing, math.inf):
        network = {name: options[name] for name in ("activation", "residual", "norm_weight", "feature_norm")}
        y = read_memory(q, memory.weights, **network).to(v.dtype)
        memory = skip_tokens(memory, q.shape[1], mask, options["rule"], options["chunk_size"])
        return Written(y, memory, alike(writing, _count(q, mask), written=False), None)
    found = gated_associative_memory(q, k, v, theta, alpha, eta, memory, decide, writing, mask=mask, **options)
    forgotten = found.written * (1 - (1 - forgotten) * found.kept)
    return Written(found.y, found.memory, found.carry, found.surprise, found.written, found.dropped, forgotten)


def decide(state: WriteState, norm: Tensor, mask: Tensor | None) -> tuple[WriteState, Decision]:
    """Decide on consecutive tokens by their gradient norms `g`, with the state's beta, lambda and threshold tau.

        dropped   g_t - m_{t-1} > largest_z d_{t-1}
        written   not dropped, and s_t > tau
        m_t = gamma m_{t-1} + (1 - gamma) g_t                       mean, of dropped tokens too: what goes on
        d_t^2 = gamma d_{t-1}^2 + (1 - gamma) (g_t - m_{t-1})^2     being an outlier becomes the rule
        s_t = beta s_{t-1} + (1 - beta) g_t       smoothed surprise, past dropped tokens as if they were not there
        a_t = beta a_{t-1} + [t is written]       activity
        kept = 1 - lambda a_t                     share of the weights that a written token keeps

    Args:
        state: before the tokens.
        norm: `g`, `[B, b]`.
        mask: `[B, b]`, bool, False where there is no token; None where all are tokens.

    Returns:
        The state after the tokens, and what becomes of each.
    """
    beta, threshold = state.smoothing.unsqueeze(1), state.threshold.unsqueeze(1)
    token = torch.ones_like(norm, dtype=torch.bool) if mask is None else mask
    judged = token & threshold.isfinite()  # the others are written, or left out, whatever they are
    stays = torch.ones_like(norm).masked_fill(judged, FOLLOWING)
    mean = _recurrence(stays, (1 - FOLLOWING) * norm * judged, state.mean)
    above = norm - _before(mean, state.mean)
    variance = _recurrence(stays, (1 - FOLLOWING) * above.square() * judged, state.deviation.square())
    dropped = judged & (above > state.largest_z.unsqueeze(1) * _before(variance, state.deviation.square()).sqrt())
    smoothing = judged & ~dropped
    smoothed = _recurrence(torch.where(smoothing, beta, 1.0), (1 - beta) * norm * smoothing, state.smoothed)
    written = token & ~dropped & (smoothed > threshold)
    activity = _recurrence(torch.where(token, beta, 1.0), written.to(norm.dtype), state.activity)
    after = dataclasses.replace(
        state,
        mean=mean[:, -1],
        deviation=variance[:, -1].sqrt(),
        smoothed=smoothed[:, -1],
        activity=activity[:, -1],
        written=state.written + written.sum(1),
        skipped=state.skipped + (token & ~written & ~dropped).sum(1),
        dropped=state.dropped + dropped.sum(1),
    )
    return after, Decision(written, dropped, 1 - state.decay.unsqueeze(1) * activity * judged)


def alike(state: WriteState, count: Tensor, written: bool) -> WriteState:
    """Count tokens that are all written, or all skipped, without looking at them: what `decide` says where tau is ∓inf.

    Args:
        state: before the tokens.
        count: tokens of each row `[B]`.
        written: whether they are written.

    Returns:
        The state after them.
    """
    faded = state.smoothing**count
    if not written:
        return dataclasses.replace(state, activity=faded * state.activity, skipped=state.skipped + count)
    activity = faded * state.activity + (1 - faded) / (1 - state.smoothing)
    return dataclasses.replace(state, activity=activity, written=state.written + count)


def _everywhere(state: WriteState, threshold: float) -> bool:
    return is_concrete(state.threshold) and bool((state.threshold == threshold).all())


def _count(q: Tensor, mask: Tensor | None) -> Tensor:
    """Count the tokens of each row of `q` `[B, T, H, d]`."""
    return torch.full((q.shape[0],), q.shape[1], device=q.device) if mask is None else mask.sum(1)


def _before(x: Tensor, start: Tensor) -> Tensor:
    """Move `x` `[B, b]` on by a token: what was known before each."""
    return torch.cat([start.unsqueeze(1), x[:, :-1]], 1)


def _recurrence(factor: Tensor, term: Tensor, start: Tensor) -> Tensor:
    """Run `x_t = factor_t x_{t-1} + term_t` over `[B, b]` from `start` `[B]`, as one product."""
    product = segment_product(factor)  # [B, b, b]
    return product[..., 0] * factor[:, :1] * start.unsqueeze(1) + (product @ term.unsqueeze(-1)).squeeze(-1)
