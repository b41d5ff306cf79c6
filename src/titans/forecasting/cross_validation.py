"""The end of each series, held out and handed over piece by piece: what forecasts from several origins are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.forecaster_settings import check_whole
from titans.forecasting.frames import interpolate
from titans.forecasting.frequency import season_length
from titans.forecasting.long_frames import ID, TARGET, TIME, Panel, without_short
from titans.forecasting.numbers import Floats
from titans.forecasting.seasonal import seasonal_naive
from titans.forecasting.sentences import listed
from titans.forecasting.windows import MINIMUM_POINTS


class Fold(NamedTuple):
    """One origin.

    Args:
        ahead: the H rows of each series that are to be forecast.
        naive: their seasonal-naive forecasts, row by row.
        new: the rows up to the next origin; of the last one, up to the end.
    """

    ahead: pd.DataFrame
    naive: Floats
    new: pd.DataFrame


@dataclasses.dataclass(frozen=True)
class Folds:
    """The origins from which the end of each series is forecast.

    Args:
        panel: the series.
        h: steps of a forecast.
        n_windows: origins.
        step_size: steps from origin to origin.

    Raises:
        TitansError: a number is none of at least 1, or all series are too short for so many origins. Of others, those
            that are too short are left out.
    """

    panel: Panel
    h: int
    n_windows: int
    step_size: int

    def __post_init__(self) -> None:
        """Leave out series that are too short."""
        for name in ("n_windows", "step_size"):
            check_whole(name, getattr(self, name))
        seen = [int(np.isfinite(one.y[: max(len(one.y) - self._held_out, 0)]).sum()) for one in self.panel.series]
        enough = [count >= MINIMUM_POINTS for count in seen]
        panel = without_short(self.panel, enough, "with too few values for a back-test")
        needed = self._held_out + MINIMUM_POINTS
        if short := [f"{one.unique_id}: {len(one.y):,}" for one in panel.series if len(one.y) < needed]:
            raise TitansError(
                f"series too short to be forecast from {self.n_windows} origins ({listed(short)} steps): expected at "
                f"least {needed:,} for a horizon of {self.h:,}; use fewer windows, a smaller step or a shorter horizon"
            )
        if not any(seen):
            names = listed([one.unique_id for one in panel.series])
            raise TitansError(f"there is no number before the first origin in the series {names}: leave them out")
        object.__setattr__(self, "panel", panel)

    @property
    def history(self) -> pd.DataFrame:
        """The rows before the first origin, of all series, as a long frame."""
        return self._rows(None, -self._held_out)

    def __iter__(self) -> Iterator[Fold]:
        """Go from the first origin to the last."""
        season = season_length(self.panel.frequency)
        for number in range(self.n_windows):
            origin, last = number * self.step_size - self._held_out, number + 1 == self.n_windows
            naive = [_repeat(one.y[:origin], season, self.h) for one in self.panel.series]
            yield Fold(
                self._rows(origin, origin + self.h or None),
                np.concatenate(naive),
                self._rows(origin, None if last else origin + self.step_size),
            )

    @property
    def _held_out(self) -> int:
        return (self.n_windows - 1) * self.step_size + self.h

    def _rows(self, start: int | None, stop: int | None) -> pd.DataFrame:
        """Write a part of each series as a long frame; steps are counted from the end."""
        frames, part = [], slice(start, stop)
        for one in self.panel.series:
            times = one.times[part]
            columns = dict(zip(self.panel.covariates, one.covariates[part].T, strict=True))
            frames.append(pd.DataFrame({ID: [one.unique_id] * len(times), TIME: times, TARGET: one.y[part], **columns}))
        return pd.concat(frames, ignore_index=True)


def _repeat(history: Floats, season: int, h: int) -> Floats:
    """Repeat the last season, or, of less than two seasons, the last value; gaps are filled on a line."""
    filled = torch.from_numpy(interpolate(history[:, None])).unsqueeze(0)
    return seasonal_naive(filled, h, season if len(history) >= 2 * season else 1).flatten().numpy()
