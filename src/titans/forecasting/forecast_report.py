"""A table of series, forecast: the back-test first, and then what follows its last row, by the same weights."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from utilsforecast.evaluation import evaluate
from utilsforecast.losses import coverage, mae, mase

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.forecaster import CUTOFF, NAIVE, NAME, Progress, TitansForecaster
from titans.forecasting.frames import Table, to_long
from titans.forecasting.frequency import season_length
from titans.forecasting.long_frames import ID, TARGET, TIME
from titans.forecasting.sentences import counted, listed, note_names
from titans.forecasting.windows import MINIMUM_POINTS

MOST_ORIGINS, HELD_OUT = 10, 0.2  # forecasts of a back-test, and the part of the rows that it takes at most
IN_MINUTES: dict[str, Any] = {"train_windows": 1, "epochs": 6, "batch_size": 64, "patch_length": 16, "patch_stride": 16}
"""How `titans forecast` sets a `TitansForecaster`, which has two minutes for 10,000 rows of 7 channels on 2 cores."""


@dataclasses.dataclass(frozen=True)
class ForecastReport:
    """What came of forecasting a table.

    Args:
        table: the series.
        horizon: steps forecast.
        backtest: forecasts of the last rows, as `TitansForecaster.cross_validation` returns them.
        scores: their errors, the columns TitansForecaster and SeasonalNaive, by unique_id and metric, "mae" or "mase".
            Missing values do not count; what cannot be said is NaN.
        forecast: of what follows the last row; the columns of `TitansForecaster.predict`.
        season: steps of a season, as the frequency tells.
        facts: how it was made, name to value.
        cut: training was ended by its time limit.
    """

    table: Table
    horizon: int
    backtest: pd.DataFrame
    scores: pd.DataFrame
    forecast: pd.DataFrame
    season: int
    facts: dict[str, str]
    cut: bool

    @property
    def channels(self) -> list[str]:
        """The names of the series."""
        return list(self.table.frame.columns)

    def score(self, channel: str, metric: str) -> tuple[float, float]:
        """Return an error of our forecasts and of seasonal-naive's in the back-test, "mae" or "mase"."""
        ours, naive = self.scores.loc[(channel, metric), [NAME, NAIVE]]
        return float(ours), float(naive)

    @property
    def mase(self) -> tuple[float, float]:
        """The mean scaled errors, ours and seasonal-naive's, over the channels that are not constant; else NaN."""
        ours, naive = self.scores.xs("mase", level="metric")[[NAME, NAIVE]].mean()
        return float(ours), float(naive)

    @property
    def levels(self) -> list[str]:
        """The levels of the intervals, narrow to wide, such as "80"."""
        return [column.rpartition("-")[2] for column in self.forecast.columns if "-lo-" in column]

    @property
    def coverage(self) -> dict[str, float]:
        """The share of values in the back-test that lie within each interval, by its level."""
        together = self.backtest.dropna(subset=[TARGET]).drop(columns=CUTOFF).assign(**{ID: "all"})
        shares = {level: coverage(together, [NAME], level) for level in self.levels}  # type: ignore[arg-type]
        return {level: float(share[NAME].mean()) for level, share in shares.items()}

    def verdict(self) -> list[str]:
        """State in sentences how good the forecasts were in the back-test, whichever way it came out."""
        ours, naive = self.mase
        origins = self.backtest[CUTOFF].nunique()
        if math.isnan(ours) or math.isnan(naive):
            return ["No channel has errors to compare: they are constant, or were not observed in the back-test."]
        scores = [self.score(channel, "mae") for channel in self.channels]
        better = sum(ours < naive for ours, naive in scores)
        compared = sum(not math.isnan(ours) for ours, _ in scores)
        share = abs(1 - ours / naive)
        word = "smaller" if ours < naive else "larger"
        sentences = [
            f"Over {counted(origins, 'forecast')} of the last rows, which training did not see, the mean absolute "
            f"error is {share:.1%} {word} than that of seasonal-naive (scaled: {ours:.3f} against {naive:.3f}), "
            f"and smaller in {better} of {counted(compared, 'channel')}."
        ]
        if ours >= naive:
            sentences.append("Seasonal-naive is better on average here: prefer the last season to these forecasts.")
        if self.season == 1:
            sentences.append("This step of time has no usual season: seasonal-naive repeats the last value.")
        for level, covered in self.coverage.items():
            sentences.append(f"The {level}% intervals held {covered:.0%} of the values.")
        if self.cut:
            sentences.append("Training was ended by its time limit: with more minutes forecasts may be better.")
        return sentences


def forecast_table(
    table: Table,
    horizon: int,
    *,
    columns: Sequence[str] | None = None,
    context_length: int | None = None,
    variant: str = "lmm",
    seed: int = 0,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> ForecastReport:
    """Train without the last rows of a table, forecast these, read them, and forecast what follows.

    Args:
        table: the series.
        horizon: steps to forecast.
        columns: the series to forecast. Default: all.
        context_length: steps of a window. Default: the forecaster's.
        variant: of the model. Default "lmm".
        seed: of weights and training. Default 0.
        seconds: of training, at most. Default: no limit.
        progress: called with the share done, 0 to 1, and a line. Default: nothing.

    Returns:
        The forecasts and their scores.

    Raises:
        TitansError: a column is unknown, the table is too short, a setting is out of range, or training diverges.
    """
    start, table = time.monotonic(), _select(table, columns)
    steps = len(table.frame)
    settings: dict[str, Any] = {"variant": variant, "input_size": context_length, "seed": seed, "seconds": seconds}
    forecaster = TitansForecaster(horizon, freq=table.frequency, **settings, **_in_minutes(context_length))
    needed = 2 * horizon + MINIMUM_POINTS
    if steps < needed:
        raise TitansError(
            f"there are {steps:,} steps of time, but a forecast of {horizon:,} and its back-test need at least "
            f"{needed:,}: give a longer history, or a horizon of at most {max((steps - MINIMUM_POINTS) // 2, 1):,}"
        )
    if context_length is not None and context_length > steps:
        raise TitansError(f"a window of {context_length:,} steps is longer than the series, which have {steps:,}")
    origins = min(max(int(steps * HELD_OUT) // horizon, 1), MOST_ORIGINS)
    table = _with_history(table, steps - origins * horizon)
    long = to_long(table)
    backtest, season = forecaster.cross_validation(long, origins, progress=progress), season_length(table.frequency)
    model, history, last = forecaster.model, forecaster.history, table.frame.index
    assert model is not None  # fitted by the back-test
    assert history is not None
    facts = {
        "data": f"{counted(steps, 'step')} from {last[0]} to {last[-1]}, each {table.frequency}; "
        f"{counted(len(table.frame.columns), 'channel')}",
        "forecast": f"{counted(horizon, 'step')} after the last",
        "back-test": f"{counted(origins, 'forecast')} of {counted(horizon, 'step')}, one after the other, of the last "
        f"{origins * horizon:,} steps; the model was trained on what comes before, and reads on in between",
        "model": f"{variant}, windows of {model.config.context_length:,} steps, {model.num_parameters():,} parameters, "
        f"seed {seed}",
        "training": f"{counted(len(history.epochs), 'epoch')}, ended by {history.stopped}",
        "took": f"{time.monotonic() - start:.0f} s",
    }
    scores = _scores(backtest, long, season)
    cut = history.stopped == "seconds"
    return ForecastReport(table, horizon, backtest, scores, forecaster.predict(), season, facts, cut)


def _scores(backtest: pd.DataFrame, long: pd.DataFrame, season: int) -> pd.DataFrame:
    """Score the forecasts of a back-test beside seasonal-naive ones; in units of the errors of these before it."""
    history = long[long[TIME] <= backtest[CUTOFF].min()]
    steps = season if history[TIME].nunique() >= 2 * season else 1
    errors = evaluate(
        backtest.drop(columns=CUTOFF), [mae, partial(mase, seasonality=steps)], [NAME, NAIVE], train_df=history
    )
    return errors.set_index([ID, "metric"]).replace(np.inf, np.nan)  # in units of nothing, where history is constant


def _in_minutes(context_length: int | None) -> dict[str, Any]:
    """The settings, with patches no longer than a window that was asked for."""
    lengths = {name: value for name, value in IN_MINUTES.items() if name.startswith("patch_")}
    return IN_MINUTES | {name: min(value, context_length or value) for name, value in lengths.items()}


def _with_history(table: Table, start: int) -> Table:
    """Leave out series with too few values before the back-test to learn from, or none in it, if others have enough."""
    observed = table.frame.notna().to_numpy()
    enough = (observed[:start].sum(0) >= MINIMUM_POINTS) & observed[start:].any(0)
    if enough.all() or not enough.any():
        return table
    names, notes = table.frame.columns[enough], list(table.notes)
    note_names(notes, table.frame.columns[~enough], "column", "with too few values left out")
    return dataclasses.replace(table, frame=table.frame[names], notes=notes)


def _select(table: Table, columns: Sequence[str] | None) -> Table:
    if columns is None:
        return table
    known = list(table.frame.columns)
    if unknown := [name for name in columns if name not in known]:
        raise TitansError(f"there is no column of numbers called {listed(unknown)}: there are {listed(known)}")
    return dataclasses.replace(table, frame=table.frame[list(dict.fromkeys(columns))])
