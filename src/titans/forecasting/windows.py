"""Every stretch of a series that is one look-back and one horizon long, cut out on demand."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from titans.errors import TitansError


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
        """Cut out the windows that start at the given steps.

        Args:
            index: integers in [0, len), `[B]`, on any device.

        Returns:
            The pasts `[B, L, C]` and the futures `[B, H, C]`, copied.
        """
        # index_select is five times as fast here as gathering rows by index arithmetic
        windows = self._views.index_select(0, index.to(self._views.device))
        return windows[:, : self.context_length], windows[:, self.context_length :]

    def every(self, step: int) -> Windows:
        """Return every so many of these windows.

        Args:
            step: 1 for all.

        Returns:
            The windows, a view of the same series.
        """
        some = copy.copy(self)
        some._views = self._views[::step]
        return some

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Go through all windows in order.

        Args:
            size: windows in a batch; the last batch holds what is left, and nothing is dropped.

        Yields:
            Pasts `[B, L, C]` and futures `[B, H, C]`.
        """
        for index in torch.arange(len(self)).split(size):
            yield self.batch(index)
