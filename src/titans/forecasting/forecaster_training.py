"""How a forecaster trains its model: on samples of all series, with the end of each held out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.forecaster_settings import ForecasterSettings
from titans.forecasting.linear import start_linear
from titans.forecasting.long_frames import ID, Panel, without_short
from titans.forecasting.numbers import to_numbers
from titans.forecasting.sentences import listed
from titans.forecasting.series_state import Points
from titans.forecasting.training import History, fit_windows
from titans.forecasting.windows import MINIMUM_POINTS, PanelStreams, stream_step
from titans.models.forecasting import TitansForForecasting

_TRAINING, _VALIDATION = 1600, 320  # samples of an epoch, and of a validation, at most
_CLIP = 1.0  # largest norm of a gradient


def long_enough(panel: Panel, h: int) -> Panel:
    """Leave out series of too few values, and refuse a panel that leaves nothing to learn from."""
    values = {one.unique_id: int(np.isfinite(one.y).sum()) for one in panel.series}
    enough = [number >= MINIMUM_POINTS for number in values.values()]
    if not any(enough):
        named = [f"{name}: {number}" for name, number in values.items()]
        raise TitansError(
            f"too few values in the series {listed(named)}: expected at least {MINIMUM_POINTS} in each; give a longer "
            "history or leave them out"
        )
    panel = without_short(panel, enough, f"with fewer than {MINIMUM_POINTS} values")
    longest = max(panel.series, key=lambda one: len(one.y))
    if len(longest.y) < h + MINIMUM_POINTS:
        raise TitansError(
            f'no series is long enough to learn a horizon of {h:,} steps from: "{longest.unique_id}" has '
            f"{len(longest.y):,} steps, expected at least {h + MINIMUM_POINTS:,}; give a longer history or shorten the "
            "horizon"
        )
    return panel


def static_numbers(frame: pd.DataFrame | None, ids: Sequence[object]) -> Tensor | None:
    """Read the numbers that are known of each series, scaled over the series, `[S, Z]`; None without a frame.

    Raises:
        TitansError: a series is missing or named twice, a number is missing, or there is none.
    """
    if frame is None:
        return None
    if not isinstance(frame, pd.DataFrame) or ID not in frame.columns:
        raise TitansError("static_df has no column unique_id: expected one row for each series")
    columns = [to_numbers(frame[name]) for name in frame.columns if name != ID]
    numbers = [column for column in columns if column is not None]
    if not numbers:
        raise TitansError("static_df has no column of numbers beside unique_id: expected at least one")
    names = pd.Index(frame[ID])
    if not names.is_unique:
        raise TitansError(f'static_df names the series "{names[names.duplicated()][0]}" twice: keep one row')
    rows = names.get_indexer(pd.Index(ids))
    values = np.stack(numbers, 1)[rows]
    lacking = (rows < 0) | ~np.isfinite(values).all(1)
    if lacking.any():
        raise TitansError(f'static_df lacks the numbers of the series "{ids[int(lacking.argmax())]}": add them')
    std = values.std(0)
    return torch.from_numpy(((values - values.mean(0)) / np.where(std > 0, std, 1.0)).astype(np.float32))


def train(
    settings: ForecasterSettings,
    points: Points,
    static: Tensor | None,
    until: Sequence[int],
    season: int,
    progress: Callable[[float, str], None] | None,
) -> tuple[TitansForForecasting, History, bool]:
    """Make a model and train it on the first steps of each series, as many as `until` says.

    Args:
        settings: of the forecaster.
        points: of all series.
        static: what is known of each series `[S, Z]`; None: nothing.
        until: how many steps of each series are learned from.
        season: steps after which the series repeat themselves.
        progress: called after each step of training; see `training.fit_windows`.

    Returns:
        The model, in evaluation mode; the losses; and whether it has learned to remember windows.
    """
    length = settings.window([len(one) for one in points.values], season)
    windows = min(settings.train_windows, max((max(until) - settings.h) // length, 1))
    config = settings.model_config(length, 0 if static is None else static.shape[1])
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        model = TitansForForecasting(config)

    def samples(spans: list[range], most: int, jitter: bool = False) -> PanelStreams:
        return PanelStreams(
            points.values,
            length,
            settings.h,
            windows,
            spans=spans,
            known=points.known,
            static=static,
            most=most,
            jitter=jitter,
        )

    learned = [range(stop) for stop in until]
    held_out = [range(stop, len(one)) for stop, one in zip(until, points.values, strict=True)]
    training, validation = samples(learned, _TRAINING, jitter=True), samples(learned, _VALIDATION)
    if any(held_out):
        candidate = samples(held_out, _VALIDATION)
        validation = candidate if _counts(candidate) else validation
    if not _counts(validation):
        raise TitansError("no value follows others closely enough to learn from: give longer series with fewer gaps")
    start_linear(model, training)
    history = fit_windows(
        model,
        training,
        validation,
        step=stream_step,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        decay="cosine",
        choice="loss",
        clip=_CLIP,
        seed=settings.seed,
        seconds=settings.seconds,
        progress=progress,
    )
    model.train(False)
    return model, history, windows > 1


def _counts(samples: PanelStreams) -> bool:
    """Whether any future counts."""
    return any(bool((~samples.batch(index)[1].isnan()).any()) for index in torch.arange(len(samples)).split(64))
