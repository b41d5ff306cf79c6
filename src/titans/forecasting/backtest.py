"""How good forecasts would have been: the end of each series, forecast from several origins."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.arguments import check_whole
from titans.forecasting.baselines import SeasonalNaive
from titans.forecasting.frames import interpolate
from titans.forecasting.long_frames import ID, TARGET, TIME, Panel, Series, regular, without_short
from titans.forecasting.numbers import Floats
from titans.forecasting.seasons import season
from titans.forecasting.sentences import listed
from titans.forecasting.windows import MINIMUM_POINTS

if TYPE_CHECKING:
    from titans.forecasting.forecaster import TitansForecaster

NAIVE, CUTOFF = "SeasonalNaive", "cutoff"


@dataclasses.dataclass(frozen=True)
class Backtest:
    """Forecasts of what is known by now, and their errors.

    Args:
        forecasts: the columns unique_id, ds, cutoff (the last time read before), y, what `predict` returns, and
            SeasonalNaive: the last season again.
        by_series: the columns unique_id, model, mse, mae, and mase: the mean absolute error in units of that which the
            last season makes within the history. Missing values do not count; what cannot be said is NaN.
        season: steps of a season, as the frequency tells.
    """

    forecasts: pd.DataFrame
    by_series: pd.DataFrame
    season: int

    @property
    def scores(self) -> pd.DataFrame:
        """The means over the series: one row for each model, with the columns mse, mae and mase."""
        return self.by_series.groupby("model", sort=False)[["mse", "mae", "mase"]].mean()

    @property
    def coverage(self) -> dict[str, float]:
        """The share of values that lie within each interval, by its level, such as "80"."""
        frame = self.forecasts.dropna(subset=[TARGET])
        shares = {}
        for column in frame.columns:
            model, lower, level = str(column).partition("-lo-")
            if lower:
                shares[level] = float(frame[TARGET].between(frame[column], frame[f"{model}-hi-{level}"]).mean())
        return shares


def backtest(
    forecaster: TitansForecaster,
    df: pd.DataFrame,
    windows: int,
    step: int,
    static_df: pd.DataFrame | None,
    progress: Callable[[float, str], None] | None,
) -> Backtest:
    """Do what `TitansForecaster.backtest` says."""
    for name, value in (("windows", windows), ("step", step)):
        check_whole(name, value)
    panel = regular(df, forecaster.frequency)
    horizon, held_out = forecaster.horizon, (windows - 1) * step + forecaster.horizon
    seen = [int(np.isfinite(one.y[: max(len(one.y) - held_out, 0)]).sum()) for one in panel.series]
    panel = without_short(panel, [count >= MINIMUM_POINTS for count in seen], "with too few values for a back-test")
    _check_lengths(panel, held_out, horizon, windows)
    ends = [len(one.y) - held_out for one in panel.series]
    forecaster.fit(_rows(panel, [slice(end) for end in ends]), static_df, progress)
    season_, state = season(panel.frequency), forecaster.series_state
    assert state is not None  # it was fitted
    means = dict(zip(state.covariates, state.covariate_mean, strict=True))  # what a missing covariate counts as
    parts = []
    for _ in range(windows):
        ahead = _rows(panel, [slice(end, end + horizon) for end in ends])
        part = forecaster.predict(ahead.fillna(means))
        part.insert(2, CUTOFF, forecaster.cutoffs.repeat(horizon))
        part.insert(3, TARGET, ahead[TARGET].to_numpy())
        part[NAIVE] = np.concatenate([_naive(one.y[:end], season_, horizon) for one, end in _each(panel, ends)])
        parts.append(part)
        forecaster.update(_rows(panel, [slice(end, end + step) for end in ends]))
        ends = [end + step for end in ends]
    if step < horizon:
        forecaster.update(_rows(panel, [slice(end, None) for end in ends]))
    forecasts = pd.concat(parts, ignore_index=True)
    forecaster.notes = panel.notes
    scales = {one.unique_id: _scale(one.y[: len(one.y) - held_out], season_) for one in panel.series}
    return Backtest(forecasts, _by_series(forecasts, scales, list(parts[0].columns)), season_)


def _check_lengths(panel: Panel, held_out: int, horizon: int, windows: int) -> None:
    needed = held_out + MINIMUM_POINTS
    if short := [f"{one.unique_id}: {len(one.y):,}" for one in panel.series if len(one.y) < needed]:
        raise TitansError(
            f"series too short to be forecast from {windows} origins ({listed(short)} steps): expected at least "
            f"{needed:,} for a horizon of {horizon:,}; use fewer windows, a smaller step or a shorter horizon"
        )
    unseen = [one.unique_id for one in panel.series if np.isnan(one.y[: len(one.y) - held_out]).all()]
    if unseen:
        raise TitansError(f"there is no number before the first origin in the series {listed(unseen)}: leave them out")


def _each(panel: Panel, ends: list[int]) -> Iterator[tuple[Series, int]]:
    return zip(panel.series, ends, strict=True)


def _rows(panel: Panel, slices: list[slice]) -> pd.DataFrame:
    """Write a part of each series as a long frame."""
    frames = []
    for one, part in zip(panel.series, slices, strict=True):
        times = one.times[part]
        columns = dict(zip(panel.covariates, one.covariates[part].T, strict=True))
        frames.append(pd.DataFrame({ID: [one.unique_id] * len(times), TIME: times, TARGET: one.y[part], **columns}))
    return pd.concat(frames, ignore_index=True)


def _naive(history: Floats, season_: int, horizon: int) -> Floats:
    """Repeat the last season, or, of less than two seasons, the last value; gaps are filled on a line."""
    filled = torch.from_numpy(interpolate(history[:, None])).unsqueeze(0)
    steps = season_ if len(history) >= 2 * season_ else 1
    return SeasonalNaive(horizon, steps)(filled).flatten().numpy()


def _scale(history: Floats, season_: int) -> float:
    """The mean absolute error of seasonal-naive forecasts, one step at a time, within a history."""
    steps = season_ if len(history) >= 2 * season_ else 1
    errors = np.abs(history[steps:] - history[:-steps])
    errors = errors[~np.isnan(errors)]
    return float(errors.mean()) if len(errors) and errors.mean() > 0 else float("nan")


def _by_series(forecasts: pd.DataFrame, scales: dict[object, float], columns: list[str]) -> pd.DataFrame:
    models = [name for name in columns[4:] if "-lo-" not in name and "-hi-" not in name]
    rows = []
    for name, part in forecasts.groupby(ID, sort=False):
        for model in models:
            error = (part[model] - part[TARGET]).dropna()
            mae = float(error.abs().mean())
            scores = {"mse": float(error.pow(2).mean()), "mae": mae, "mase": mae / scales[name]}
            rows.append({ID: name, "model": model, **scores})
    return pd.DataFrame(rows)
