"""The scikit-like face of forecasting: long frames in, forecasts with intervals out, and a memory that reads on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.arguments import check_levels, check_names, check_positive, check_whole
from titans.forecasting.backtest import Backtest, backtest
from titans.forecasting.frequency import check_frequency
from titans.forecasting.linear import start_linear
from titans.forecasting.long_frames import ID, TIME, regular, without_short
from titans.forecasting.seasons import season
from titans.forecasting.sentences import listed
from titans.forecasting.series_state import Points, SeriesState, static_numbers
from titans.forecasting.stream import ForecastStream
from titans.forecasting.training import History, fit
from titans.forecasting.windows import MINIMUM_POINTS, PanelStreams, stream_step
from titans.models.forecasting import TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig

NAME = "TitansForecaster"
Progress = Callable[[float, str], None]

_LONGEST = 512  # steps of a window that is chosen here, unless the horizon is longer
_TRAINING, _VALIDATION = 1600, 320  # samples of an epoch, and of a validation, at most
_CLIP = 1.0  # largest norm of a gradient
_SEEDS = 2**63  # torch takes no more
_CHUNK = 4096  # steps of all series that are laid side by side at once
_SET_HERE = ("num_channels", "num_future_covariates", "num_static_covariates")


class TitansForecaster:
    """Forecasts time series with a memory that has read them from the beginning, and reads on.

    One model is trained for all series of a frame; each is a stream of its own. Training reads `windows` consecutive
    windows of a series, one after the other, and learns from the forecasts after each, so that the memory learns what
    to keep; then the stream reads every series once, from its beginning, in constant space. `predict` forecasts from
    there, and `update` reads new rows, without training.

    Each series is scaled by mean and deviation of the steps that training learns from, and its mean at each place of
    the usual season (a day of hours, say) is taken off and put back on the forecast. The last tenth of a series, at
    least a horizon, is not learned from: it decides which epoch's weights are kept. (A series that would not leave two
    horizons and 4 steps is learned from as a whole; where all are, the training samples decide.) Missing values are
    seen as missing, and do not count in the loss. A series of one constant value is forecast as that.

    Args:
        horizon: steps H to forecast.
        context_length: steps L of a window. Default: a horizon or four seasons, whichever is longer; at most 512 or
            a horizon, whichever is longer; and at most half of what the horizon leaves of a series of median length.
        frequency: the step of time, as a pandas offset alias, as MS-15 (months on the 15th) or as a whole number.
            Default: found in the times.
        quantiles: levels, symmetric in pairs, that make the intervals; 0.5, the point forecast, is added. None: a
            point forecast alone, of the mean.
        future_covariates: columns of the frame that are known for the horizon as well. Other columns are ignored.
        variant: what reads: "lmm", "mac", "mag", "mal", or a baseline; see `TitansForecastingConfig`.
        windows: windows K of a training sample; fewer where no series is long enough. 1: windows are read one by one,
            and nothing is remembered from one to the next, which trains several times as fast. Default 4.
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
        horizon: int,
        *,
        context_length: int | None = None,
        frequency: str | int | None = None,
        quantiles: Sequence[float] | None = (0.1, 0.5, 0.9),
        future_covariates: Sequence[str] = (),
        variant: str = "lmm",
        windows: int = 4,
        epochs: int = 10,
        batch_size: int = 32,
        learning_rate: float = 2e-3,
        seed: int = 0,
        seconds: float | None = None,
        **config: Any,
    ) -> None:
        frequency = getattr(frequency, "freqstr", frequency)  # of a pandas offset, which JSON does not know
        self.horizon, self.context_length, self.frequency = horizon, context_length, frequency
        self.quantiles = check_levels(quantiles)
        self.future_covariates = check_names(future_covariates)
        self.variant, self.windows, self.epochs, self.batch_size = variant, windows, epochs, batch_size
        self.learning_rate, self.seed, self.seconds, self.config = learning_rate, seed, seconds, config
        self.model: TitansForForecasting | None = None
        self.history: History | None = None
        self.notes: list[str] = []
        """What the last call of `fit`, `update` or `backtest` did to the data, one sentence each."""
        self.series_state: SeriesState | None = None
        self.stream: ForecastStream | None = None
        self._check()

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments this forecaster was made with."""
        names = ("horizon", "context_length", "frequency", "variant", "windows", "epochs", "batch_size")
        settings = {name: getattr(self, name) for name in (*names, "learning_rate", "seed", "seconds")}
        return {
            **settings,
            "quantiles": self.quantiles,
            "future_covariates": self.future_covariates,
            **self.config,
        }

    @property
    def cutoffs(self) -> pd.Index:
        """The time up to which each series was read `[S]`."""
        return self._fitted()[0].ends

    def fit(
        self, df: pd.DataFrame, static_df: pd.DataFrame | None = None, progress: Progress | None = None
    ) -> TitansForecaster:
        """Train on the series of a frame, and read them.

        Args:
            df: the columns unique_id, ds, y and the future covariates, cleaned as `frames.regular` does. Series of
                fewer than 4 values are left out; the longest needs H + 4 steps. A covariate that is missing in a row
                counts as its mean.
            static_df: unique_id and columns of numbers known of each series; columns of anything else are ignored.
            progress: called after each step of training with the share done, 0 to 1, and a line.

        Returns:
            This forecaster.

        Raises:
            TitansError: the frame cannot be used, all series are too short, or training diverges.
        """
        panel = regular(df, self.frequency)
        enough = [np.isfinite(one.y).sum() >= MINIMUM_POINTS for one in panel.series]
        panel = without_short(panel, enough, f"with fewer than {MINIMUM_POINTS} values")
        lengths = [len(one.y) for one in panel.series]
        self._check_lengths({one.unique_id: int(np.isfinite(one.y).sum()) for one in panel.series}, max(lengths))
        until = [self._learned(length) for length in lengths]
        state, points = SeriesState.open(panel, self.future_covariates, until, season(panel.frequency))
        static = static_numbers(static_df, state.ids)
        length = self.context_length or self._default_length(lengths, panel.frequency)
        windows = min(self.windows, max((max(until) - self.horizon) // length, 1))
        config = self._configure(length, 0 if static is None else static.shape[1])
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = TitansForForecasting(config)
        history = self._train(model, points, static, windows, until, progress)
        model.train(False)
        stream = ForecastStream(model, len(state.ids), memory=windows > 1, static_covariates=static)
        _feed(stream, points)
        self.model, self.history, self.series_state, self.stream, self.notes = (
            model,
            history,
            state,
            stream,
            panel.notes,
        )
        return self

    def predict(self, futr_df: pd.DataFrame | None = None) -> pd.DataFrame:
        """Forecast what follows the last row read of each series.

        Args:
            futr_df: unique_id, ds and the future covariates, where there are some, for the next H steps of each
                series; further rows and columns are ignored.

        Returns:
            The columns unique_id, ds, TitansForecaster, and for each pair of quantiles TitansForecaster-lo-80 and
            TitansForecaster-hi-80, H rows for each series, in the order of `fit`.

        Raises:
            TitansError: `fit` was not called, or a covariate is missing.
        """
        state, stream = self._fitted()
        output = stream.forecast(state.known(futr_df, self.horizon))
        assert output.prediction is not None  # always there
        levels = output.prediction if output.quantiles is None else output.quantiles.squeeze(2)  # [S, H, Q]
        values = state.unscaled(levels)
        times = state.horizon(self.horizon)
        frame = pd.DataFrame({ID: np.repeat(pd.Index(state.ids), self.horizon), TIME: times[0].append(times[1:])})
        quantiles = self.quantiles or [0.5]
        frame[NAME] = values[..., quantiles.index(0.5)].ravel()
        for below in reversed(range(quantiles.index(0.5))):
            level = f"{round(100 * (1 - 2 * quantiles[below]), 6):g}"
            frame[f"{NAME}-lo-{level}"] = values[..., below].ravel()
            frame[f"{NAME}-hi-{level}"] = values[..., -1 - below].ravel()
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
                the grid of time. Nothing is read then.
        """
        state, stream = self._fitted()
        notes: list[str] = []
        state, points = state.read(df, notes)
        stream = stream.fork()  # so that an interruption leaves all as it was
        _feed(stream, points)
        self.series_state, self.stream, self.notes = state, stream, notes
        return self

    def backtest(
        self,
        df: pd.DataFrame,
        *,
        windows: int = 3,
        step: int | None = None,
        static_df: pd.DataFrame | None = None,
        progress: Progress | None = None,
    ) -> Backtest:
        """Train without the end of each series, then forecast that end from several origins, reading on in between.

        Afterwards this forecaster has read all of `df`, with weights that were trained without its end: `predict`
        forecasts what follows. Call `fit` for weights that learn from the end as well.

        Args:
            df: as for `fit`.
            windows: origins. Default 3.
            step: steps from origin to origin. Default: the horizon.
            static_df: as for `fit`.
            progress: as for `fit`.

        Returns:
            The forecasts and their errors, beside those of seasonal-naive forecasts.

        Raises:
            TitansError: as `fit`, or all series are too short for so many origins; if only some are, they are left
                out.
        """
        return backtest(self, df, windows, self.horizon if step is None else step, static_df, progress)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the forecaster, its model and its memory to a folder; a crash leaves what was there, or all of this.

        Args:
            folder: the folder, which is made if need be.

        Raises:
            TitansError: `fit` was not called, the folder cannot be written, or a series has a name that is neither a
                text nor a number.
        """
        from titans.forecasting.forecaster_folder import save

        save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TitansForecaster:
        """Read what `save` wrote: it forecasts the same, and reads on.

        Args:
            folder: the folder.

        Returns:
            The forecaster; without the history of its training.

        Raises:
            TitansError: the folder holds no forecaster, or a damaged one.
        """
        from titans.forecasting.forecaster_folder import load

        return load(cls, folder)

    def _train(
        self,
        model: TitansForForecasting,
        points: Points,
        static: Tensor | None,
        windows: int,
        until: list[int],
        progress: Progress | None,
    ) -> History:
        def samples(spans: list[range], most: int, jitter: bool) -> PanelStreams:
            length = model.config.context_length
            return PanelStreams(
                points.values,
                length,
                self.horizon,
                windows,
                spans=spans,
                known=points.known,
                static=static,
                most=most,
                jitter=jitter,
            )

        learned = [range(stop) for stop in until]
        held_out = [range(stop, len(one)) for stop, one in zip(until, points.values, strict=True)]
        training, validation = samples(learned, _TRAINING, True), samples(learned, _VALIDATION, False)
        if any(held_out):
            candidate = samples(held_out, _VALIDATION, False)
            validation = candidate if _counts(candidate) else validation
        if not _counts(validation):
            raise TitansError(
                "no value follows others closely enough to learn from: give longer series with fewer gaps"
            )
        start_linear(model, training)
        return fit(
            model,
            training,
            validation,
            step=stream_step,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            decay="cosine",
            choice="loss",
            clip=_CLIP,
            seed=self.seed,
            seconds=self.seconds,
            progress=progress,
        )

    def _fitted(self) -> tuple[SeriesState, ForecastStream]:
        if self.series_state is None or self.stream is None:
            raise TitansError("this forecaster has read nothing yet: call fit first, or load one that was saved")
        return self.series_state, self.stream

    def _learned(self, steps: int) -> int:
        """How many steps of a series are learned from; the others are for validation."""
        rest = steps - max(self.horizon, steps // 10)
        return rest if rest >= 2 * self.horizon + MINIMUM_POINTS else steps

    def _default_length(self, lengths: list[int], frequency: str | int) -> int:
        wanted = min(max(self.horizon, 4 * season(frequency)), max(_LONGEST, self.horizon))
        return max(min(wanted, (int(np.median(lengths)) - self.horizon) // 2), MINIMUM_POINTS)

    def _configure(self, length: int, statics: int) -> TitansForecastingConfig:
        patch = self.config.get("patch_length", min(16, max(length // 4, 1)))
        stride = self.config.get("patch_stride", max(patch // 2, 1) if isinstance(patch, int) else patch)
        if self.context_length is None and isinstance(patch, int) and isinstance(stride, int):
            patch, stride = min(patch, length), min(stride, length)  # nobody asked for this window
        fields = {"quantiles": self.quantiles, **self.config, "patch_length": patch, "patch_stride": stride}
        try:
            return TitansForecastingConfig(
                variant=self.variant,
                context_length=length,
                horizon=self.horizon,
                num_future_covariates=len(self.future_covariates),
                num_static_covariates=statics,
                **fields,
            )
        except ValueError as error:
            raise TitansError(str(error)) from error

    def _check(self) -> None:
        """Refuse settings that cannot work."""
        for name in ("horizon", "windows", "epochs", "batch_size"):
            check_whole(name, getattr(self, name))
        check_positive("learning_rate", self.learning_rate)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        check_whole("seed", self.seed, 0)
        if self.seed >= _SEEDS:
            raise TitansError(f"seed is {self.seed}, expected less than {_SEEDS}")
        if self.frequency is not None:
            check_frequency(self.frequency)
        if self.config.get("tokens", "patch") != "patch" or self.config.get("channel_mixing"):
            raise TitansError("each series is a stream of its own here: leave tokens and channel_mixing as they are")
        known = set(TitansForecastingConfig.hints()) - set(_SET_HERE)
        if unknown := sorted(set(self.config) - known):
            raise TitansError(f"there is no setting {listed(unknown)}: expected fields of TitansForecastingConfig")
        self._configure(_LONGEST if self.context_length is None else self.context_length, 0)

    def _check_lengths(self, values: dict[object, int], longest: int) -> None:
        """Refuse series that are too short."""
        if short := [f"{name}: {number}" for name, number in values.items() if number < MINIMUM_POINTS]:
            raise TitansError(
                f"too few values in the series {listed(short)}: expected at least {MINIMUM_POINTS} in each; give a "
                "longer history or leave them out"
            )
        if longest < self.horizon + MINIMUM_POINTS:
            name = max(values, key=lambda name: values[name])
            raise TitansError(
                f'no series is long enough to learn a horizon of {self.horizon:,} steps from: "{name}" has {longest:,} '
                f"steps, expected at least {self.horizon + MINIMUM_POINTS:,}; give a longer history or shorten the "
                "horizon"
            )


def _feed(stream: ForecastStream, points: Points) -> None:
    """Have a stream read points of series of different lengths."""
    for start in range(0, max(map(len, points.values)), _CHUNK):
        values = [one[start : start + _CHUNK] for one in points.values]
        known = pad_sequence([one[start : start + _CHUNK] for one in points.known], batch_first=True)
        counts = torch.tensor([len(one) for one in values])
        stream.update(pad_sequence(values, batch_first=True), counts, known if known.shape[2] else None)


def _counts(samples: PanelStreams) -> bool:
    """Whether any future counts."""
    return any(bool((~samples.batch(index)[1].isnan()).any()) for index in torch.arange(len(samples)).split(64))
