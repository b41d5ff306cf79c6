"""What a memory gains that goes on learning: a series whose pattern changes for good, and ETTh1.

    python experiments/forecasting/streaming.py path/to/ETTh1.csv.gz     # ten minutes on 2 cores

1. Series with a random pattern that repeats every 48 steps, which a look-back of 24 cannot show whole, and that is
   another one from some step on. The models have seen other patterns; these are new to them.
2. ETTh1 as it is: a look-back of 96 hours cannot show a week.

One model each, trained to read windows one after the other with its memory, is read three ways: "online", the memory
learns from each window; "stopped", it keeps what it had learned before the change; "frozen", it forgets each window.
Writes `streaming.json` and `streaming.png`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from titans import TitansForecastingConfig, TitansForForecasting, plots
from titans.evaluation.forecasting_models import default_config
from titans.evaluation.forecasting_run import load
from titans.evaluation.results import save_result
from titans.forecasting.linear import start_linear
from titans.forecasting.stream import ForecastStream
from titans.forecasting.training import fit_windows
from titans.forecasting.windows import PanelStreams, stream_step

LENGTH, PERIOD, WINDOWS = 24, 48, 8  # look-back and horizon, steps of the pattern, windows of a training sample
NOISE = 0.1
SERIES, TEST_WINDOWS, CHANGE = 128, 24, 12
WAYS = ("online", "stopped", "frozen")


def pattern(count: int, generator: torch.Generator) -> Tensor:
    """Draw patterns `[count, PERIOD]`: a number every 6 steps, joined by straight lines, round in a circle."""
    corners = torch.randn(count, PERIOD // 6, generator=generator)
    closed = torch.cat([corners, corners[:, :1]], 1).unsqueeze(1)
    return F.interpolate(closed, PERIOD + 1, mode="linear", align_corners=True)[:, 0, :PERIOD]


def series(count: int, windows: int, change: Tensor, generator: torch.Generator) -> Tensor:
    """Draw series `[count, windows LENGTH + LENGTH]` that follow one pattern before `change` and another after."""
    steps = torch.arange((windows + 1) * LENGTH)
    place = (steps + torch.randint(PERIOD, (count, 1), generator=generator)) % PERIOD
    before, after = (pattern(count, generator).gather(1, place) for _ in range(2))
    noise = NOISE * torch.randn(count, len(steps), generator=generator)
    return torch.where(steps < change.unsqueeze(1), before, after) + noise


class Patterns:
    """Endless training data: batch number `index` is always the same, and half of its series change."""

    def __init__(self, batches: int, seed: int) -> None:
        self.batches, self.seed = batches, seed

    def __len__(self) -> int:
        return self.batches

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Draw series for the given numbers: windows `[B, K, L, 1]` and futures `[B, K, H, 1]`."""
        samples = []
        for number in index.tolist():
            generator = torch.Generator().manual_seed(self.seed + number)
            steps = WINDOWS * LENGTH
            change = torch.randint(steps // 3, 2 * steps // 3, (1,), generator=generator)
            changes = torch.rand(1, generator=generator) < 0.5
            samples.append(series(1, WINDOWS, torch.where(changes, change, 2 * steps), generator))
        cut = torch.cat(samples).unfold(1, 2 * LENGTH, LENGTH).unsqueeze(-1)
        return cut[:, :, :LENGTH], cut[:, :, LENGTH:]


def errors(model: Any, values: Tensor, length: int, horizon: int, way: str, stop: int, step: int) -> list[float]:
    """Read series `[S, T, C]` in pieces of `step`, and return the mean squared error of each forecast on the way.

    Args:
        model: the model.
        values: the series.
        length: its look-back; the first forecast comes after so much.
        horizon: its horizon.
        way: one of `WAYS`.
        stop: after so many forecasts a "stopped" memory learns no more.
        step: steps from forecast to forecast.
    """
    stream = ForecastStream(model, len(values), values.shape[2], memory=way != "frozen")
    stream.update(values[:, :length])
    found = []
    for now in range(length, values.shape[1] - horizon + 1, step):
        forecast = stream.forecast().prediction
        found.append(F.mse_loss(forecast, values[:, now : now + horizon]).item())
        stream.update(values[:, now : now + step], learn=way != "stopped" or len(found) < stop)
    return found


def regime_change() -> dict[str, Any]:
    """Part 1: mean squared error by window, before and after the pattern changes."""
    torch.manual_seed(0)
    model = TitansForForecasting(
        TitansForecastingConfig(
            variant="lmm", context_length=LENGTH, horizon=LENGTH, patch_length=12, patch_stride=12, hidden_size=64,
            num_hidden_layers=2, memory={"chunk_size": 2}, normalize=False,
        )
    )  # fmt: skip
    training = Patterns(32 * 300, 0)
    history = fit_windows(
        model, training, Patterns(64, 10**6), step=stream_step, epochs=5, batch_size=32, learning_rate=3e-3,
        decay="cosine", weight_decay=0.01, clip=1.0, epoch_steps=60,
    )  # fmt: skip
    change = torch.full((SERIES,), CHANGE * LENGTH)
    values = series(SERIES, TEST_WINDOWS, change, torch.Generator().manual_seed(10**7)).unsqueeze(-1)
    found = {way: errors(model, values, LENGTH, LENGTH, way, CHANGE - 1, LENGTH) for way in WAYS}
    last = slice(CHANGE + 2, None)  # from the third window after the change on
    return {
        "validation_mse": history.validation_mse,
        "noise": NOISE**2,
        "mse_by_window": found,
        "before": {way: sum(e[3 : CHANGE - 1]) / len(e[3 : CHANGE - 1]) for way, e in found.items()},
        "after": {way: sum(e[last]) / len(e[last]) for way, e in found.items()},
    }


def real(path: Path, windows: int = 8, length: int = 96, horizon: int = 96) -> dict[str, Any]:
    """Part 2: ETTh1's test part, read hour by hour after its validation part; beside a model of single windows."""
    evaluation = load(path, "ett", context_length=length, horizons=[horizon])
    benchmark = evaluation.benchmark.without_season(evaluation.season)
    split, values = benchmark.split, benchmark.values
    start = split.test.start  # one look-back before the first forecast
    held = values[split.validation.start : split.test.stop].unsqueeze(0)
    found: dict[str, Any] = {"windows": windows}
    for name, count in (("stream", windows), ("single", 1)):
        torch.manual_seed(0)
        model = TitansForForecasting(default_config(length, horizon, values.shape[1], memory={"chunk_size": 6}))
        train, validation = (
            PanelStreams([values[rows.start : rows.stop]], length, horizon, count)
            for rows in (split.train, range(split.validation.start, split.test.start + length))
        )
        start_linear(model, train)
        fit_windows(
            model, train, validation, step=stream_step, epochs=4, batch_size=64 // count, learning_rate=1e-3,
            decay="cosine", weight_decay=0.1, clip=1.0, epoch_steps=70,
        )  # fmt: skip
        first = (start - split.validation.start) // 24
        for way in WAYS[::2]:
            by_day = errors(model, held, length, horizon, way, 0, 24)[first:]
            found[f"{name}, {way}"] = sum(by_day) / len(by_day)
    return found


def plot(found: dict[str, Any]) -> Figure:
    """Draw part 1."""
    drawn, (axes,) = plots.figure(size=(8, 3.5))
    for number, (way, curve) in enumerate(found["mse_by_window"].items()):
        plots.line(axes, range(1, len(curve) + 1), curve, number, markersize=3, label=way)
    axes.axvline(CHANGE, color=plots.MUTED, linestyle=":", label="another pattern")
    axes.axhline(found["noise"], color=plots.MUTED, linewidth=0.8, label="noise")
    axes.set(yscale="log", xlabel="windows read", ylabel="mean squared error of the forecast")
    plots.legend(axes, ncols=2)
    return drawn


def main() -> None:
    """Train, read, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, nargs="?", help="CSV of ETTh1; default: part 1 alone")
    parser.add_argument("--out", type=Path, default=Path("docs/lab-notes/forecasting"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {"regime_change": regime_change()}
    if arguments.dataset is not None:
        results["etth1"] = real(arguments.dataset)
    save_result(arguments.out, "streaming", results, plot(results["regime_change"]))
    print(
        json.dumps(
            {name: {k: v for k, v in part.items() if k != "mse_by_window"} for name, part in results.items()}, indent=1
        )
    )


if __name__ == "__main__":
    main()
