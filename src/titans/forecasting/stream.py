"""Series that go on: a memory that keeps learning while points arrive, in constant space."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from titans import disk
from titans.errors import TitansError
from titans.models.forecasting import ForecastOutput, TitansForForecasting
from titans.models.memory_state import MemoryState
from titans.persistence import state_file


class ForecastStream:
    """What a model knows of some series up to now: their last points, and a memory of all that came before these.

    The memory reads the series window by window, each as long as the model's look-back, one after the other and each
    once, as soon as a later window is there to forecast from. A forecast reads the last window, whole, with that
    memory. So it depends on what has come and not on how it was divided among calls; at most two windows of points
    are kept. Train the model on `Streams`: one that has only seen single windows does not know what to remember.

    Args:
        model: the model; its weights must not change while the stream goes on.
        series: how many series S are read side by side.
        channels: channels C of each. Default: the model's.
        memory: False: forget each window; the frozen twin, for comparisons. Default True.
        static_covariates: `[S, Z]`, where the model has some.
    """

    def __init__(
        self,
        model: TitansForForecasting,
        series: int = 1,
        channels: int | None = None,
        memory: bool = True,
        static_covariates: Tensor | None = None,
    ) -> None:
        self.model, self.memory = model, memory
        self._static = None if static_covariates is None else static_covariates.to(model.device)
        self._channels: int = model.config.num_channels if channels is None else channels
        self._length: int = model.config.context_length
        # What no window has handed to the memory yet, oldest first, with room for a push of L, and how many it is.
        # The covariates of each point stand behind it.
        width = self._channels + model.config.num_future_covariates
        self._points = torch.full((series, 3 * self._length, width), torch.nan, device=model.device)
        self._filled = torch.zeros(series, dtype=torch.long, device=model.device)
        self._state: MemoryState | None = None  # of all rows; before the first whole window there is none

    @property
    def seen(self) -> Tensor:
        """How many points of each series forecasts can look at without memory, `[S]`: at most two windows less one."""
        return self._filled.clone()

    @property
    def nbytes(self) -> int:
        """Bytes that the stream holds; they do not grow."""
        return self._points.nbytes + self._filled.nbytes + (0 if self._state is None else self._state.nbytes)

    def update(self, points: Tensor, counts: Tensor | None = None, future_covariates: Tensor | None = None) -> None:
        """Read new points.

        Args:
            points: `[S, n, C]`, or `[n, C]` of a single series; NaN where a value is missing.
            counts: how many of them are new in each series `[S]`; the rest, on the right, is padding. Default: n.
            future_covariates: the covariates of the new points `[S, n, F]`, where the model has some.

        Raises:
            TitansError: points of another shape, or an infinite one.
        """
        series = len(self._points)
        points = points.unsqueeze(0) if points.dim() == 2 else points
        if points.dim() != 3 or points.shape[0] != series or points.shape[2] != self._channels:
            raise TitansError(
                f"the new points have the shape {tuple(points.shape)}, expected [{series}, steps, {self._channels}]"
            )
        points, steps = points.to(self._points), points.shape[1]
        if bool(points.isinf().any()):
            raise TitansError("a new point is infinite: hand in NaN where a value is missing")
        if (known := self._covariates(future_covariates, steps)) is not None:
            points = torch.cat([points, known], -1)
        counts = torch.full((series,), steps) if counts is None else counts
        if counts.shape != (series,) or bool(((counts < 0) | (counts > steps)).any()):
            raise TitansError(f"counts must hold a number from 0 to {steps} for each of {series} series")
        counts = counts.to(self._filled)
        for start in range(0, steps, self._length):  # at most one window becomes whole with each
            self._push(points[:, start : start + self._length], (counts - start).clamp(0, self._length))

    def forecast(self, future_covariates: Tensor | None = None) -> ForecastOutput:
        """Forecast what follows the last point of each series; the stream stays as it is.

        Args:
            future_covariates: the covariates of the horizon `[S, H, F]`, where the model has some.

        Returns:
            The forecast, `[S, H, C]`, without a cache.

        Raises:
            TitansError: a series has no point yet, or covariates have another shape.
        """
        known = self._covariates(future_covariates, self.model.config.horizon)
        if not bool((self._filled > 0).all()):
            raise TitansError("there is nothing to forecast from: call update with at least one point of each series")
        index = self._filled.unsqueeze(1) + torch.arange(-self._length, 0, device=self._filled.device)  # [S, L]
        window = self._points.gather(1, index.clamp(min=0).unsqueeze(-1).expand(-1, -1, self._points.shape[2]))
        window = torch.where((index >= 0).unsqueeze(-1), window, torch.nan)
        return self._read(window, self._state, False, known)

    def fork(self) -> ForecastStream:
        """Return a stream that stands where this one does and goes on by itself."""
        twin = copy.copy(self)
        twin._points = self._points.clone()  # written in place; all else is replaced
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stream to one file that `load` reads; a crash leaves the old file or the new one.

        Args:
            path: the file; its folder exists.

        Raises:
            TitansError: the model's weights have changed since the stream began.
        """
        state = self._start() if self._state is None else self._state
        memory = torch.frombuffer(bytearray(state_file.dump(state, self.model)), dtype=torch.uint8)
        tensors = {"memory": memory, "points": self._points.cpu(), "filled": self._filled.cpu()}
        if self._static is not None:
            tensors["static"] = self._static.cpu()
        disk.replace(Path(path), safetensors.torch.save(tensors))

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: TitansForForecasting) -> ForecastStream:
        """Read a stream that `save` wrote.

        Args:
            path: the file.
            model: the model that the stream belongs to: the same weights and configuration.

        Returns:
            The stream.

        Raises:
            TitansError: the file is damaged or missing, or the stream belongs to another model.
        """
        try:
            tensors = safetensors.torch.load(disk.read(Path(path)))
            memory, points, filled = tensors["memory"], tensors["points"], tensors["filled"]
            state, _ = state_file.parse(memory.numpy().tobytes(), model)
            channels = points.shape[2] - model.config.num_future_covariates
            stream = cls(model, len(points), channels, static_covariates=tensors.get("static"))
            if points.shape != stream._points.shape or filled.shape != stream._filled.shape or state.rows % len(points):
                raise TitansError("its parts do not fit together")
        except OSError as error:
            raise TitansError(f"cannot read the stream file {path} ({error.strerror}): is the path right?") from error
        except (SafetensorError, KeyError, IndexError, TypeError) as error:
            raise TitansError(
                f"{path} is no stream file, or a damaged one ({error}): use a copy that is whole"
            ) from error
        except TitansError as error:
            raise TitansError(f"{path}: {error}") from error
        if not bool(((filled >= 0) & (filled < 2 * stream._length)).all()):
            raise TitansError(f"{path} is damaged (its counts are out of range): use a copy that is whole")
        stream._points, stream._filled, stream._state = points.to(stream._points), filled.to(stream._filled), state
        return stream

    def _push(self, points: Tensor, counts: Tensor) -> None:
        """Append at most L points to each series, and hand over the oldest window where two are whole."""
        offsets = torch.arange(points.shape[1], device=points.device)
        real = offsets < counts.unsqueeze(1)
        rows, columns = real.nonzero(as_tuple=True)
        self._points[rows, self._filled[rows] + columns] = points[rows, columns]
        self._filled = self._filled + counts
        whole = self._filled >= 2 * self._length
        if not bool(whole.any()):
            return
        if self.memory:
            self._learn(whole)
        moved = self._points.roll(-self._length, 1)
        moved[:, -self._length :] = torch.nan
        self._points = torch.where(whole.view(-1, 1, 1), moved, self._points)
        self._filled = self._filled - self._length * whole

    @torch.no_grad()  # or the state would hold on to the graph of all that it was made from
    def _learn(self, whole: Tensor) -> None:
        """Have the memories of some series read their oldest window."""
        before = self._start() if self._state is None else self._state
        after = self._read(self._points[:, : self._length], before, True).cache
        assert after is not None  # asked for
        rows = whole.repeat_interleave(before.rows // len(whole))
        self._state = after.where(rows, before)

    @torch.no_grad()
    def _start(self) -> MemoryState:
        rows = len(self._points) * (1 if self.model.config.channel_mixing else self._channels)
        return self.model.initial_state(rows)

    def _read(
        self, window: Tensor, cache: MemoryState | None, use_cache: bool, horizon: Tensor | None = None
    ) -> ForecastOutput:
        """Read a window with what is known of it, and of its horizon where the forecast matters."""
        window, known = window[..., : self._channels], window[..., self._channels :]
        observed = window.isfinite()
        if horizon is None:
            horizon = known.new_zeros(len(known), self.model.config.horizon, known.shape[2])
        return self.model.forecast(
            window,
            observed=None if bool(observed.all()) else observed,
            future_covariates=torch.cat([known.nan_to_num(), horizon], 1) if known.shape[2] else None,
            static_covariates=self._static,
            cache=cache,
            use_cache=use_cache,
        )

    def _covariates(self, known: Tensor | None, steps: int) -> Tensor | None:
        """Check the covariates of some steps."""
        expected = (len(self._points), steps, self.model.config.num_future_covariates)
        if not expected[2] and known is None:
            return None
        if known is None or tuple(known.shape) != expected or not expected[2]:
            found = "missing" if known is None else f"of the shape {tuple(known.shape)}"
            raise TitansError(f"the covariates are {found}, expected {list(expected) if expected[2] else 'none'}")
        known = known.to(self._points)
        if not bool(known.isfinite().all()):
            raise TitansError("a covariate is NaN or infinite: covariates must be known")
        return known
