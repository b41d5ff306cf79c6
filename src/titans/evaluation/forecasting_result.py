"""What an evaluation of forecasts measured: a table of scores, kept as JSON and a plot."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans import plots
from titans.evaluation.results import save_result
from titans.forecasting._pandas import pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The errors of one model, trained once, at one horizon.

    Args:
        model: its name.
        horizon: steps forecast.
        seed: of its training; None for what is not trained.
        mse: mean squared error in scaled space.
        mae: mean absolute error in scaled space.
        windows: how many windows were forecast.
    """

    model: str
    horizon: int
    seed: int | None
    mse: float
    mae: float
    windows: int


@dataclasses.dataclass(frozen=True)
class MeanScores:
    """Measurements put together.

    Args:
        mse: mean of the mean squared errors.
        mae: mean of the mean absolute errors.
        mse_deviation: standard deviation of the first over the seeds (n - 1); 0 with one seed.
        mae_deviation: of the second.
        seeds: how many measurements; the fewest of any horizon in a mean over horizons.
    """

    mse: float
    mae: float
    mse_deviation: float
    mae_deviation: float
    seeds: int


@dataclasses.dataclass(frozen=True)
class ForecastingResult:
    """The scores of models on one data set.

    Args:
        dataset: its name.
        protocol: one of `titans.evaluation.forecasting.PROTOCOLS`.
        context_length: look-back.
        description: what was measured how, one line (`Benchmark.describe`).
        measurements: one for each model, horizon and seed.
        deviations: what was done in another way than the protocol says. Default: nothing.
    """

    dataset: str
    protocol: str
    context_length: int
    description: str
    measurements: tuple[Measurement, ...]
    deviations: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models, in the order of their first measurement."""
        return tuple(dict.fromkeys(m.model for m in self.measurements))

    @property
    def horizons(self) -> tuple[int, ...]:
        """The horizons, ascending."""
        return tuple(sorted({m.horizon for m in self.measurements}))

    def describe(self) -> str:
        """Say in one line what was measured how, and what deviates from the protocol."""
        return f"{self.description}; deviations: {'; '.join(self.deviations) or 'none'}"

    def mean(self, model: str, horizon: int | None = None) -> MeanScores | None:
        """Put the measurements of a model together.

        Args:
            model: its name.
            horizon: average over the seeds at this one. Default: over all horizons, each with the same weight.

        Returns:
            The mean; None where the horizon, or any of them, was not measured: a mean over fewer of them could
            not be compared.
        """
        wanted = self.horizons if horizon is None else (horizon,)
        table = pd.DataFrame(self.measurements).query("model == @model and horizon in @wanted")
        by_horizon = table.groupby("horizon")[["mse", "mae"]]
        if by_horizon.ngroups < len(wanted):
            return None
        whole = table.groupby("seed").filter(lambda found: len(found) == len(wanted))  # seeds that have every horizon
        deviation = whole.groupby("seed")[["mse", "mae"]].mean().std().fillna(0.0)  # 0 with one seed, or none
        mean, off = by_horizon.mean().mean().to_dict(), deviation.to_dict()
        return MeanScores(mean["mse"], mean["mae"], off["mse"], off["mae"], int(by_horizon.size().min()))

    def save(self, folder: Path) -> None:
        """Write `forecasting.json` and the plot `forecasting.png` to a folder, each whole or not at all."""
        save_result(folder, "forecasting", self._as_json(), _plot(self))

    def _as_json(self) -> dict[str, Any]:
        means = {
            model: {
                "all horizons" if horizon is None else str(horizon): mean and dataclasses.asdict(mean)
                for horizon in (*self.horizons, None)
                for mean in [self.mean(model, horizon)]
            }
            for model in self.models
        }
        return {**dataclasses.asdict(self), "description": self.describe(), "means": means}


def _plot(result: ForecastingResult) -> Figure:
    """Draw the errors as bars, the horizons side by side and in each the models; whiskers: one deviation."""
    drawn, both = plots.figure(2, size=(9, 3.8))
    groups = [*result.horizons, None] if len(result.horizons) > 1 else list(result.horizons)
    width = 0.8 / len(result.models)
    for axes, error in zip(both, ("mse", "mae"), strict=True):
        for number, model in enumerate(result.models):
            means = [result.mean(model, horizon) for horizon in groups]
            axes.bar(
                plots.beside(range(len(groups)), number, len(result.models), width),
                [math.nan if mean is None else getattr(mean, error) for mean in means],
                width,
                yerr=[0 if mean is None else getattr(mean, f"{error}_deviation") for mean in means],
                label=model,
            )
        axes.set_xticks(range(len(groups)), ["mean" if horizon is None else str(horizon) for horizon in groups])
        axes.set(xlabel="horizon, steps", ylabel=f"{error.upper()} in scaled space")
        axes.grid(False, axis="x")
    drawn.suptitle(f"{result.dataset}, protocol {result.protocol}, look-back {result.context_length}")
    plots.legend(drawn, ncols=4)
    return drawn
