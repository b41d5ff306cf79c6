"""What a model is trained and scored on, cut out on demand: single windows, and streams of consecutive windows.

A window is a stretch of a series that is one look-back and one horizon long. A stream is several windows, each with its
horizon, which a model reads one after the other and keeps its memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from titans.errors import TitansError

if TYPE_CHECKING:
    from titans.models.forecasting import TitansForForecasting

MINIMUM_POINTS = 4
"""Steps that the past of a sample of `PanelStreams` has at least."""


class Windows:
    """The windows of a series of T steps: T - L - H + 1 pairs of a past and the future that follows it.

    Nothing is copied but what a batch holds: the windows are a view of the series.

    Args:
        values: the series, `[T, C]`, of any floating dtype and on any device; batches have the same.
        context_length: steps L of the past, the look-back.
        horizon: steps H of the future.

    Raises:
        TitansError: the series is not `[T, C]`, a length is below 1, or the series is shorter than one window.
    """

    def __init__(self, values: Tensor, context_length: int, horizon: int) -> None:
        if values.dim() != 2:
            raise TitansError(f"the series has the shape {tuple(values.shape)}, expected [steps, channels]")
        if context_length < 1 or horizon < 1:
            raise TitansError(
                f"the look-back is {context_length} and the horizon {horizon}, expected at least 1 of each"
            )
        length = context_length + horizon
        if len(values) < length:
            raise TitansError(
                f"the series has {len(values):,} steps, but a look-back of {context_length:,} and a horizon of "
                f"{horizon:,} need {length:,}: use a longer series, or a shorter look-back or horizon"
            )
        self.context_length, self.horizon = context_length, horizon
        self._views = values.unfold(0, length, 1).movedim(2, 1)  # [N, L + H, C], no memory of its own

    def __len__(self) -> int:
        return len(self._views)

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Copy the windows that start at steps `[B]`: their pasts `[B, L, C]` and futures `[B, H, C]`."""
        # index_select is five times as fast here as gathering rows by index arithmetic
        windows = self._views.index_select(0, index.to(self._views.device))
        return windows[:, : self.context_length], windows[:, self.context_length :]

    def every(self, step: int) -> Windows:
        """Every `step`-th of these windows, a view of the same series."""
        some = copy.copy(self)
        some._views = self._views[::step]
        return some

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all windows in order, `size` at a time; the last batch holds what is left."""
        for index in torch.arange(len(self)).split(size):
            yield self.batch(index)


class PanelStreams:
    """The samples of series of different lengths, with covariates: K consecutive windows and the horizon of each.

    Samples end at each step. Of a series of 2 K L + H steps or more all samples are whole. Of a shorter one, the first
    has a past of L steps, or of half of what the horizon leaves if that is less, at least `MINIMUM_POINTS`; what lacks
    on its left to K windows is missing (NaN), which makes such samples slower to read.

    Args:
        values: the series, `[T, C]` each; NaN where a value is missing.
        context_length: steps L of a window.
        horizon: steps H of a future.
        windows: windows K of a sample.
        spans: the steps of each series whose values count as futures; pasts reach back before. Default: all. A series
            whose span is shorter than a horizon has no samples.
        known: covariates of each series, `[T, F]`. Default: none.
        static: numbers of each series, `[S, Z]`. Default: none.
        most: more samples than so many are thinned out evenly. Default: all are there.
        jitter: where samples are thinned out, draw each time anew which of neighbours stands for them, so that
            training sees all in time.

    Raises:
        TitansError: there is no sample.
    """

    def __init__(
        self,
        values: Sequence[Tensor],
        context_length: int,
        horizon: int,
        windows: int,
        *,
        spans: Sequence[range] | None = None,
        known: Sequence[Tensor] | None = None,
        static: Tensor | None = None,
        most: int | None = None,
        jitter: bool = False,
    ) -> None:
        spans = [range(len(one)) for one in values] if spans is None else spans
        self.context_length, self.horizon, self.windows, self.jitter = context_length, horizon, windows, jitter
        self._values = torch.cat(list(values))
        self._known = torch.cat(list(known)) if known else self._values.new_empty(len(self._values), 0)
        self._static = self._values.new_empty(len(values), 0) if static is None else static
        first = [max(span.start, self._shortest(span.stop)) for span in spans]  # steps of the past of first samples
        counts = [max(span.stop - horizon - start + 1, 0) for span, start in zip(spans, first, strict=True)]
        lengths = torch.tensor([len(one) for one in values])
        self._offsets = lengths.cumsum(0) - lengths  # of each series in `_values`
        self._first, self._spans = torch.tensor(first), torch.tensor([span.start for span in spans])
        self._until = torch.tensor(counts).cumsum(0)  # samples of a series and all before it
        self._total = int(self._until[-1])
        if not self._total:
            raise TitansError(
                f"no series is long enough for a sample: expected at least {horizon + MINIMUM_POINTS:,} steps, for a "
                f"horizon of {horizon:,}"
            )
        self._stride = 1 if most is None else -(-self._total // most)

    def __len__(self) -> int:
        return -(-self._total // self._stride)

    def _shortest(self, steps: int) -> int:
        """The shortest past of a sample from a series of so many steps."""
        whole = self.windows * self.context_length
        if steps >= 2 * whole + self.horizon:
            return whole
        return min(self.context_length, max(MINIMUM_POINTS, (steps - self.horizon) // 2))

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cut out samples.

        Args:
            index: integers in [0, len), `[B]`.

        Returns:
            The windows `[B, K, L, C]`, the future of each `[B, K, H, C]`, covariates of both `[B, K, L + H, F]`, and
            `[B, Z]`. A future is NaN where it does not count: outside its span, or after a window without any value.
        """
        place = index.cpu() * self._stride
        if self.jitter and self._stride > 1:
            place = (place + torch.randint(self._stride, place.shape)).clamp(max=self._total - 1)
        series = torch.searchsorted(self._until, place, right=True)
        before = torch.where(series > 0, self._until[series - 1], 0)
        now = self._first[series] + place - before  # steps of the series that are past
        length, horizon = self.context_length, self.horizon
        steps = now.unsqueeze(1) + torch.arange(-self.windows * length, horizon)  # [B, K L + H], < 0 before the series
        rows = (self._offsets[series].unsqueeze(1) + steps).clamp(min=0)
        outside = (steps < 0).unsqueeze(-1)
        past, future = _split(self._values[rows].masked_fill(outside, torch.nan), length, horizon)
        counts = _split((steps >= self._spans[series].unsqueeze(1)).unsqueeze(-1), length, horizon)[1]
        counts = counts & ~past.isnan().all(2, keepdim=True)
        known = torch.cat(_split(self._known[rows].masked_fill(outside, 0.0), length, horizon), 2)
        return past, future.masked_fill(~counts, torch.nan), known, self._static[series]


def stream_step(
    model: TitansForForecasting,
    past: Tensor,
    future: Tensor,
    known: Tensor | None = None,
    static: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Read consecutive windows, each with the memory of those before, and forecast after each; for `training.fit`.

    Args:
        model: the model.
        past: K windows `[B, K, L, C]`; NaN where a value is missing.
        future: what came after each `[B, K, H, C]`; NaN where it is missing, or is not to count.
        known: the covariates of each window and its horizon `[B, K, L + H, F]`; none where F is 0.
        static: `[B, Z]`; none where Z is 0.

    Returns:
        The forecasts `[B, K, H, C]`, and the mean loss over all that counts; its gradient flows through all windows.
    """
    known = known if known is not None and known.shape[-1] else None
    static = static if static is not None and static.shape[-1] else None
    cache, predictions, losses = None, [], []
    for number in range(past.shape[1]):
        observed = ~past[:, number].isnan()
        output = model(
            past[:, number],
            future_values=future[:, number],
            observed=None if bool(observed.all()) else observed,
            future_covariates=None if known is None else known[:, number],
            static_covariates=static,
            cache=cache,
            use_cache=True,
        )
        cache = output.cache
        predictions.append(output.prediction)
        losses.append(output.loss)
    counts = (~future.isnan()).sum((0, 2, 3))  # what counts after each window
    return torch.stack(predictions, 1), (torch.stack(losses) * counts).sum() / counts.sum().clamp(min=1)


def _split(stretch: Tensor, length: int, horizon: int) -> tuple[Tensor, Tensor]:
    """Cut `[B, K L + H, C]` into windows `[B, K, L, C]` and what follows each `[B, K, H, C]`."""
    windows = stretch.unfold(1, length + horizon, length).transpose(2, 3)  # [B, K, L + H, C]
    return windows[:, :, :length], windows[:, :, length:]
