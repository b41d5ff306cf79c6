"""Training and testing of forecasting models by the protocol, in runs that are each done once and kept."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from titans.errors import TitansError
from titans.evaluation.forecasting import Benchmark, Predict, prepare, score_forecasts
from titans.evaluation.forecasting_models import (
    DLINEAR_TRAINING,
    TITANS_TRAINING,
    DLinear,
    PointForecaster,
    default_config,
)
from titans.evaluation.forecasting_result import ForecastingResult, Measurement
from titans.evaluation.progress import Finished, Progress, unheard, unseen, within
from titans.evaluation.result_store import ResultStore
from titans.forecasting.frames import interpolate, read_csv
from titans.forecasting.frequency import season_length
from titans.forecasting.linear import start_linear
from titans.forecasting.seasonal import seasonal_naive
from titans.forecasting.training import Step, fit_windows, mse_step
from titans.io.text import without_compression
from titans.models.configuration import VARIANTS

UNTRAINED = ("repeat", "seasonal-naive")
FORECASTING_MODELS = (*VARIANTS, "dlinear", *UNTRAINED)
WINDOWS = 3000  # the linear start and validation see so many windows at most, spread evenly: more say little more
HORIZONS, LOOK_BACK, SEEDS = (96, 192, 336, 720), 96, 3  # the field's
_FIELDS = dataclasses.fields(Measurement)


class ForecastingRun(NamedTuple):
    """One model, trained and tested at one horizon.

    Args:
        model: one of `FORECASTING_MODELS`.
        horizon: steps to forecast.
        seed: of its weights and its training; None for what is not trained.
    """

    model: str
    horizon: int
    seed: int | None

    def __str__(self) -> str:
        """Name it, to the user and in the folder of results."""
        return f"{self.model}, horizon {self.horizon}" + ("" if self.seed is None else f", seed {self.seed}")


def load(
    path: Path, protocol: str, *, context_length: int = LOOK_BACK, horizons: Sequence[int] = HORIZONS
) -> Evaluation:
    """Read a data set and make it ready by a protocol.

    Args:
        path: a CSV file with a column of time.
        protocol: "ett" or "custom".
        context_length: look-back. Default 96.
        horizons: steps to forecast. Default 96, 192, 336, 720.

    Returns:
        What can be evaluated.

    Raises:
        TitansError: the file cannot be read, or it does not fit the protocol.
    """
    table = read_csv(path)
    frequency = table.frequency if isinstance(table.frequency, str) else None
    notes = table.notes
    if table.frame.isna().any(axis=None):
        notes = [*notes, "missing values were filled on a line between their neighbours, at the ends with the nearest"]
    benchmark = prepare(
        interpolate(table.frame.to_numpy()),
        without_compression(path).name.removesuffix(".csv"),
        protocol,
        context_length=context_length,
        horizons=horizons,
        frequency=frequency,
    )
    return Evaluation(benchmark, season_length(table.frequency), tuple(notes))


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A data set on which models are trained and tested.

    Args:
        benchmark: the data set.
        season: steps of its usual season.
        notes: what was done to the data before.
    """

    benchmark: Benchmark
    season: int
    notes: tuple[str, ...] = ()

    def models(self) -> tuple[str, ...]:
        """The models worth comparing here: ours, DLinear, and the naive ones that the look-back is long enough for."""
        fits = self.season <= self.benchmark.context_length
        return ("lmm", "dlinear", "repeat", *(["seasonal-naive"] if fits and self.season > 1 else []))

    def measure(
        self,
        folder: Path,
        models: Sequence[str],
        seeds: int = SEEDS,
        *,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        minutes: float | None = None,
        progress: Progress = unseen,
        finished: Finished = unheard,
    ) -> ForecastingResult:
        """Train every model at every horizon with every seed, and test each on all test windows.

        Each run that ends is kept in the folder at once, and is not done again when it is asked for again. More
        models, horizons and seeds can be added so; the settings stay what they were.

        Args:
            folder: where runs, settings and result go; made if it does not exist.
            models: of `FORECASTING_MODELS`.
            seeds: how many, from 0. Default 3.
            epochs: most passes over the training windows. Default: the model's (`evaluation.forecasting_models`).
            learning_rate: at the start. Default: the model's.
            batch_size: windows of one step. Default: the model's.
            minutes: about how long all this may take: a training ends when its share of the time is over, and this is
                named as a deviation. Default: no limit.
            progress: called now and then. Default: nothing.
            finished: called with a sentence for each run that is done. Default: nothing.

        Returns:
            The scores, also written to the folder.

        Raises:
            TitansError: a setting is out of range, the folder holds runs with other settings, or a training diverges.
        """
        runs = self._plan(models, seeds)
        given = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size}
        changes = {name: value for name, value in given.items() if value is not None}
        for name, value in {**changes, "minutes": 1.0 if minutes is None else minutes}.items():
            if not 0 < value < math.inf:
                raise TitansError(f"{name.replace('_', ' ')} is {value}, expected more than 0, and finite")
        if (folder / "runs").exists():
            raise TitansError(f"{folder} holds runs of an older version: use another folder")
        store = ResultStore(folder, self._settings(changes, minutes), [field.name for field in _FIELDS])
        trainings = sum(run.seed is not None and str(run) not in store for run in runs)
        end = math.inf if minutes is None else time.monotonic() + 60 * minutes
        kept = []
        for number, run in enumerate(runs):
            if (result := store.get(str(run))) is None:
                try:
                    seconds = max(end - time.monotonic(), 1e-3) / max(trainings, 1)  # an equal share of what is left
                    shown = within(progress, number, 1, len(runs), str(run))
                    result = self._train_and_test(run, changes, seconds, shown)
                except TitansError as error:
                    raise TitansError(f"{run}: {error}") from error
                trainings -= run.seed is not None
                store.add(str(run), result)
                finished(f"{run}: MSE {result['mse']:.4f}")
            kept.append(result)
        together = self._result(kept, seeds, changes)
        together.save(folder)
        return together

    def _plan(self, models: Sequence[str], seeds: int) -> list[ForecastingRun]:
        """The runs, in the order of the table; refused where a model cannot do what is asked."""
        unknown = [model for model in models if model not in FORECASTING_MODELS]
        if unknown or not models or len(set(models)) < len(models):
            wrong = f'"{unknown[0]}" is no model' if unknown else f"the models are {', '.join(models) or 'none'}"
            raise TitansError(f"{wrong}: expected different ones of {', '.join(FORECASTING_MODELS)}")
        if seeds < 1:
            raise TitansError(f"there are {seeds} seeds, expected at least 1")
        if "seasonal-naive" in models and self.season > self.benchmark.context_length:
            raise TitansError(
                f"seasonal-naive needs a look-back of a season of {self.season} steps, but it is "
                f"{self.benchmark.context_length}: use a longer look-back, or leave seasonal-naive out"
            )
        return [
            ForecastingRun(model, horizon, seed)
            for model in models
            for horizon in self.benchmark.horizons
            for seed in ([None] if model in UNTRAINED else range(seeds))
        ]

    def _settings(self, changes: dict[str, Any], minutes: float | None) -> dict[str, Any]:
        """What the runs of a folder share, as JSON has it."""
        values = self.benchmark.values.numpy()
        defaults = default_config(self.benchmark.context_length, 1, values.shape[1]).to_diff_dict()
        return {
            "dataset": self.benchmark.name,
            "rows": len(values),
            "channels": values.shape[1],
            "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
            "protocol": self.benchmark.protocol,
            "look_back": self.benchmark.context_length,
            "season": self.season,
            "minutes": minutes,
            "model": {
                name: value for name, value in defaults.items() if name not in ("horizon", "transformers_version")
            },
            "training": TITANS_TRAINING | changes,
            "dlinear_training": DLINEAR_TRAINING | changes,
        }

    def _train_and_test(
        self, run: ForecastingRun, changes: dict[str, Any], seconds: float, progress: Progress
    ) -> dict[str, Any]:
        """Train and test; what is to be kept of it."""
        start, benchmark = time.monotonic(), self.benchmark
        kept: dict[str, Any] = {}
        predict: Predict
        if run.seed is None:
            steps = 1 if run.model == "repeat" else self.season
            predict = partial(seasonal_naive, horizon=run.horizon, season=steps)
        else:
            benchmark = benchmark if run.model == "dlinear" else benchmark.without_season(self.season)
            train, validation = (benchmark.windows(part, run.horizon) for part in ("train", "validation"))
            step: Step = mse_step
            training = DLINEAR_TRAINING
            with torch.random.fork_rng([]):
                torch.manual_seed(run.seed)
                if run.model == "dlinear":
                    predict = DLinear(benchmark.context_length, run.horizon)
                else:
                    channels = benchmark.values.shape[1]
                    predict = PointForecaster(benchmark.context_length, run.horizon, channels, run.model)
                    start_linear(predict.model, train.every(-(-len(train) // WINDOWS)))
                    step, training = predict.step, TITANS_TRAINING
            history = fit_windows(
                predict,
                train,
                validation.every(-(-len(validation) // WINDOWS)),
                step=step,
                seed=run.seed,
                seconds=None if math.isinf(seconds) else seconds,
                progress=progress,
                **(training | changes),
            )
            kept = {
                "parameters": sum(parameter.numel() for parameter in predict.parameters()),
                "validation_mse": history.validation_mse,
                "epochs": len(history.epochs),
                "best_epoch": history.best,
                "start_mse": history.start_mse,
                "stopped": history.stopped,
            }
        scores = score_forecasts(predict, benchmark.windows("test", run.horizon))
        measured = run._asdict() | scores._asdict()
        return {**measured, **kept, "seconds": round(time.monotonic() - start, 2)}

    def _result(self, kept: list[dict[str, Any]], seeds: int, changes: dict[str, Any]) -> ForecastingResult:
        benchmark = self.benchmark
        deviations = []
        if set(benchmark.horizons) != set(HORIZONS):
            deviations.append(f"horizons {', '.join(map(str, benchmark.horizons))}")
        if benchmark.context_length != LOOK_BACK:
            deviations.append(f"look-back {benchmark.context_length}")
        if seeds != SEEDS:
            deviations.append(f"{seeds} {'seed' if seeds == 1 else 'seeds'}")
        cut = sum(run.get("stopped") == "seconds" for run in kept)
        trained = sum(run["seed"] is not None for run in kept)
        deviations += [f"the time limit ended {cut} of {trained} trainings"] if cut else []
        deviations += [f"{name.replace('_', ' ')} {value:g}" for name, value in changes.items()]
        return ForecastingResult(
            benchmark.name,
            benchmark.protocol,
            benchmark.context_length,
            benchmark.describe(),
            tuple(Measurement(**{field.name: run[field.name] for field in _FIELDS}) for run in kept),
            (*deviations, *self.notes),
        )
