"""What forecasts from several origins need beside the forecaster: series that are long enough, and a naive forecast."""

from __future__ import annotations

import numpy as np
import torch

from titans.errors import TitansError
from titans.forecasting.forecaster_settings import check_whole
from titans.forecasting.frames import interpolate
from titans.forecasting.frequency import season_length
from titans.forecasting.long_frames import Panel, without_short
from titans.forecasting.numbers import Floats
from titans.forecasting.seasonal import seasonal_naive
from titans.forecasting.sentences import listed
from titans.forecasting.windows import MINIMUM_POINTS


def long_enough_for(panel: Panel, h: int, n_windows: int, step_size: int) -> tuple[Panel, list[int]]:
    """Leave out series that are too short to be forecast from so many origins, if others are not.

    Returns:
        The panel, and the origins: steps from the end, below 0.

    Raises:
        TitansError: a number is none of at least 1, or all series are too short.
    """
    check_whole("n_windows", n_windows)
    check_whole("step_size", step_size)
    origins = [(number + 1 - n_windows) * step_size - h for number in range(n_windows)]
    needed = MINIMUM_POINTS - origins[0]
    seen = [int(np.isfinite(one.y[: origins[0]]).sum()) for one in panel.series]
    enough = [count >= MINIMUM_POINTS for count in seen]
    kept = without_short(panel, enough, "with too few values for a back-test")
    if short := [f"{one.unique_id}: {len(one.y):,}" for one in kept.series if len(one.y) < needed]:
        raise TitansError(
            f"series too short to be forecast from {n_windows} origins ({listed(short)} steps): expected at least "
            f"{needed:,} for a horizon of {h:,}; use fewer windows, a smaller step or a shorter horizon"
        )
    if not any(seen):
        names = listed([one.unique_id for one in panel.series])
        raise TitansError(f"there is no number before the first origin in the series {names}: leave them out")
    return kept, origins


def naive_forecasts(panel: Panel, origin: int, h: int) -> Floats:
    """Repeat the last season of each series, or, of less than two, the last value; gaps are filled on a line."""
    usual, forecasts = season_length(panel.frequency), []
    for one in panel.series:
        history = torch.from_numpy(interpolate(one.y[:origin, None])).unsqueeze(0)
        season = usual if history.shape[1] >= 2 * usual else 1
        forecasts.append(seasonal_naive(history, h, season).flatten().numpy())
    return np.concatenate(forecasts)
