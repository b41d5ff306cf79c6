"""The forecaster: long frames in, forecasts with intervals out, and a memory that reads on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from titans.errors import TitansError
from titans.forecasting import forecaster_file
from titans.forecasting._pandas import pd
from titans.forecasting.cross_validation import long_enough_for, naive_forecasts
from titans.forecasting.forecaster_settings import ForecasterSettings
from titans.forecasting.forecaster_training import long_enough, static_numbers, train
from titans.forecasting.frequency import season_length
from titans.forecasting.long_frames import ID, TARGET, TIME, regular
from titans.forecasting.series_state import Points, SeriesState
from titans.forecasting.stream import ForecastStream
from titans.forecasting.training import History
from titans.models.forecasting import TitansForForecasting

NAME, NAIVE, CUTOFF = "TitansForecaster", "SeasonalNaive", "cutoff"
Progress = Callable[[float, str], None]

_CHUNK = 4096  # steps of all series that are laid side by side at once


class TitansForecaster:
    """Forecasts time series with a memory that has read them from the beginning, and reads on.

    Arguments and frames are called as NeuralForecast calls them. One model is trained for all series of a frame; each
    is a stream of its own. Training reads `train_windows` consecutive windows of a series, one after the other, and
    learns from the forecasts after each, so that the memory learns what to keep; then the stream reads every series
    once, from its beginning, in constant space. `predict` forecasts from there, and `update` reads new rows, without
    training.

    Each series is scaled by mean and deviation of the steps that training learns from, and its mean at each place of
    the usual season (a day of hours, say) is taken off and put back on the forecast. The last tenth of a series, at
    least a horizon, is not learned from: it decides which epoch's weights are kept. (A series that would not leave two
    horizons and 4 steps is learned from as a whole; where all are, the training samples decide.) Missing values are
    seen as missing, and do not count in the loss. A series of one constant value is forecast as that.

    Args:
        h: steps to forecast, the horizon.
        input_size: steps L of a window. Default: a horizon or four seasons, whichever is longer; at most 512 or a
            horizon, whichever is longer; and at most half of what the horizon leaves of a series of median length.
        freq: the step of time: a pandas alias, `pd.DateOffset(months=1, day=15)` or a whole number.
            Default: found in the times.
        level: percentages of the intervals, such as [80, 95]. None: a point forecast alone, of the mean; with
            intervals it is the median. Default 80.
        futr_exog_list: columns of the frame that are known for the horizon as well. Other columns are ignored.
        variant: what reads: "lmm", "mac", "mag", "mal", or a baseline; see `TitansForecastingConfig`.
        train_windows: windows of a training sample; fewer where no series is long enough. 1: windows are read one by
            one, and nothing is remembered from one to the next, which trains several times as fast. Default 4.
        epochs: of at most 1,600 samples, drawn evenly from all. Default 10.
        batch_size: samples of a step. Default 32.
        learning_rate: of Adam, at the start; it falls to 0 along a cosine. Default 2e-3.
        seed: of the weights and of training; the same seed gives the same forecasts. Default 0.
        seconds: of training, at most. Default: no limit.
        **config: further fields of `TitansForecastingConfig`, such as `hidden_size`. Patches are by default a quarter
            of a window long, at most 16 steps, and overlap by half; they are cut to a window that is chosen here.

    Raises:
        TitansError: a setting is out of range, or there is none of this name.
    """

    def __init__(
        self,
        h: int,
        *,
        input_size: int | None = None,
        freq: str | int | None = None,
        level: Sequence[float] | None = (80,),
        futr_exog_list: Sequence[str] = (),
        variant: str = "lmm",
        train_windows: int = 4,
        epochs: int = 10,
        batch_size: int = 32,
        learning_rate: float = 2e-3,
        seed: int = 0,
        seconds: float | None = None,
        **config: Any,
    ) -> None:
        self.settings = ForecasterSettings(**{name: value for name, value in locals().items() if name != "self"})
        self.model: TitansForForecasting | None = None
        self.history: History | None = None
        self.notes: list[str] = []
        """What the last call of `fit`, `update` or `cross_validation` did to the data, one sentence each."""
        self.series_state: SeriesState | None = None
        self.stream: ForecastStream | None = None

    @property
    def cutoffs(self) -> pd.Index:
        """The time up to which each series was read `[S]`."""
        return self._fitted()[0].ends

    def fit(
        self, df: pd.DataFrame, static_df: pd.DataFrame | None = None, progress: Progress | None = None
    ) -> TitansForecaster:
        """Train on the series of a frame, and read them.

        Args:
            df: the columns unique_id, ds, y and the covariates of `futr_exog_list`, cleaned as `long_frames.regular`
                does. Series of fewer than 4 values are left out; the longest needs H + 4 steps. A covariate that is
                missing in a row counts as its mean.
            static_df: unique_id and columns of numbers known of each series; columns of anything else are ignored.
            progress: called after each step of training with the share done, 0 to 1, and a line.

        Returns:
            This forecaster.

        Raises:
            TitansError: the frame cannot be used, all series are too short, or training diverges.
        """
        settings = self.settings
        panel = long_enough(regular(df, settings.freq), settings.h)
        until, season = [settings.learned(len(one.y)) for one in panel.series], season_length(panel.frequency)
        state, points = SeriesState.open(panel, settings.futr_exog_list, until, season)
        static = static_numbers(static_df, state.ids)
        model, history, remembers = train(settings, points, static, until, season, progress)
        stream = ForecastStream(model, len(state.ids), memory=remembers, static_covariates=static)
        _feed(stream, points)
        self.model, self.history, self.notes = model, history, panel.notes
        self.series_state, self.stream = state, stream
        return self

    def predict(self, futr_df: pd.DataFrame | None = None) -> pd.DataFrame:
        """Forecast what follows the last row read of each series.

        Args:
            futr_df: unique_id, ds and the covariates of `futr_exog_list`, where there are some, for the next H steps
                of each series; further rows and columns are ignored.

        Returns:
            The columns unique_id, ds, TitansForecaster, and for each level TitansForecaster-lo-80 and
            TitansForecaster-hi-80, H rows for each series, in the order of `fit`.

        Raises:
            TitansError: `fit` was not called, or a covariate is missing.
        """
        state, stream = self._fitted()
        h, levels = self.settings.h, self.settings.level
        output = stream.forecast(state.known(futr_df, h))
        assert output.prediction is not None  # always there
        values = state.unscaled(output.prediction if output.quantiles is None else output.quantiles.squeeze(2))
        times = state.horizon(h)
        frame = pd.DataFrame({ID: np.repeat(pd.Index(state.ids), h), TIME: times[0].append(times[1:])})
        median = len(levels)
        frame[NAME] = values[..., median].ravel()
        for rank, level in enumerate(levels, start=1):
            frame[f"{NAME}-lo-{level:g}"] = values[..., median - rank].ravel()
            frame[f"{NAME}-hi-{level:g}"] = values[..., median + rank].ravel()
        return frame

    def update(self, df: pd.DataFrame) -> TitansForecaster:
        """Read new rows, of all series or of some, in constant space: the memory goes on learning, the model does not.

        How rows are divided among calls does not matter. Steps without a row are missing values.

        Args:
            df: the new rows, as for `fit`; each later than all that was read of its series.

        Returns:
            This forecaster.

        Raises:
            TitansError: `fit` was not called, or a row is of an unknown series, not later than what was read, or off
                the series' times. Nothing is read then.
        """
        state, stream = self._fitted()
        notes: list[str] = []
        state, points = state.read(df, notes)
        stream = stream.fork()  # so that an interruption leaves all as it was
        _feed(stream, points)
        self.series_state, self.stream, self.notes = state, stream, notes
        return self

    def cross_validation(
        self,
        df: pd.DataFrame,
        n_windows: int = 3,
        step_size: int | None = None,
        static_df: pd.DataFrame | None = None,
        progress: Progress | None = None,
    ) -> pd.DataFrame:
        """Train without the end of each series, then forecast that end from several origins, reading on in between.

        Afterwards this forecaster has read all of `df`, with weights that were trained without its end: `predict`
        forecasts what follows. Call `fit` for weights that learn from the end as well.

        Args:
            df: as for `fit`. Series that are too short for so many origins are left out, if others are not.
            n_windows: origins. Default 3.
            step_size: steps from origin to origin. Default: the horizon.
            static_df: as for `fit`.
            progress: as for `fit`.

        Returns:
            The columns unique_id, ds, cutoff (the last time read before), what `predict` returns, SeasonalNaive (the
            last season again; the last value where less than two seasons were read), and y: what
            `utilsforecast.evaluation.evaluate` takes.

        Raises:
            TitansError: as `fit`, or all series are too short for so many origins.
        """
        settings = self.settings
        h, step_size = settings.h, settings.h if step_size is None else step_size
        panel, origins = long_enough_for(regular(df, settings.freq), h, n_windows, step_size)
        self.fit(panel.to_frame(None, origins[0]), static_df, progress)
        state, _ = self._fitted()
        means = dict(zip(state.covariates, state.covariate_mean, strict=True))  # what a missing covariate counts as
        parts = []
        for origin, next_origin in zip(origins, [*origins[1:], None], strict=True):
            ahead, new = panel.to_frame(origin, origin + h or None), panel.to_frame(origin, next_origin)
            part = self.predict(ahead.fillna(means))
            part.insert(2, CUTOFF, self.cutoffs.repeat(h))
            part[NAIVE], part[TARGET] = naive_forecasts(panel, origin, h), ahead[TARGET]
            parts.append(part)
            self.update(new)
        self.notes = panel.notes
        return pd.concat(parts, ignore_index=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the forecaster, its model and its memory to one file; a crash leaves what was there, or all of this.

        Args:
            path: the file; its folder is made if need be.

        Raises:
            TitansError: `fit` was not called, the file cannot be written, or a series has a name that is neither a
                text nor a number.
        """
        state, stream = self._fitted()
        forecaster_file.save(path, self.settings, state, stream)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TitansForecaster:
        """Read what `save` wrote: it forecasts the same, and reads on.

        Args:
            path: the file.

        Returns:
            The forecaster; without the history of its training.

        Raises:
            TitansError: the file holds no forecaster, or a damaged one.
        """
        settings, state, stream = forecaster_file.load(path)
        forecaster = cls(**settings.pop("config"), **settings)
        forecaster.model, forecaster.series_state, forecaster.stream = stream.model, state, stream
        return forecaster

    def _fitted(self) -> tuple[SeriesState, ForecastStream]:
        if self.series_state is None or self.stream is None:
            raise TitansError("this forecaster has read nothing yet: call fit first, or load one that was saved")
        return self.series_state, self.stream


def _feed(stream: ForecastStream, points: Points) -> None:
    """Have a stream read points of series of different lengths."""
    for start in range(0, max(map(len, points.values)), _CHUNK):
        values = [one[start : start + _CHUNK] for one in points.values]
        known = pad_sequence([one[start : start + _CHUNK] for one in points.known], batch_first=True)
        counts = torch.tensor([len(one) for one in values])
        stream.update(pad_sequence(values, batch_first=True), counts, known if known.shape[2] else None)
