"""Series that go on: a memory that keeps learning while points arrive, in constant space."""

from __future__ import annotations

import copy
import json
import math
import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from titans.errors import TitansError
from titans.io import atomic
from titans.models.forecasting import ForecastOutput, TitansForForecasting
from titans.models.memory_state import MemoryState
from titans.persistence.fingerprint import fingerprint
from titans.persistence.state_file import put_together, take_apart
from titans.persistence.tensor_file import TensorFile

STREAM_FILE = TensorFile("stream file", "titans-forecast-stream", "2")
_MEMORY = "memory."  # before the names of the memory's tensors


class Held(NamedTuple):
    """All that a stream holds at one moment; S series of C channels and F covariates, look-back L.

    Args:
        points: what no window has handed to the memory yet, oldest first, with room for L more, `[S, 3 L, C + F]`; the
            covariates of each point stand behind it.
        filled: how many they are, `[S]`, below 2 L.
        state: the memory of what came before; None where the stream has none.
    """

    points: Tensor
    filled: Tensor
    state: MemoryState | None


class ForecastStream:
    """What a model knows of some series up to now: their last points, and a memory of all that came before these.

    The memory reads the series window by window, each as long as the model's look-back, one after the other and each
    once, as soon as a later window is there to forecast from. A forecast reads the last window, whole, with that
    memory. So it depends on what has come and not on how it was divided among calls; at most two windows of points
    are kept, in float32 or the model's type if that is finer. Train the model on `PanelStreams`: one that has only seen
    single windows does not know what to remember.

    Args:
        model: the model; its weights must not change while the stream goes on. Its mode does not matter.
        series: how many series S are read side by side. Default 1.
        channels: channels C of each. Default: the model's.
        memory: False: forget each window; the frozen twin, for comparisons, and all there is for a variant without
            state ("none"). Default True.
        static_covariates: `[S, Z]`, where the model has some.

    Raises:
        TitansError: no series or channel, other channels than the model mixes, or other static covariates than it has.
    """

    def __init__(
        self,
        model: TitansForForecasting,
        series: int = 1,
        channels: int | None = None,
        memory: bool = True,
        static_covariates: Tensor | None = None,
    ) -> None:
        config = model.config
        channels = config.num_channels if channels is None else channels
        if series < 1 or channels < 1:
            raise TitansError(f"a stream of {series} series of {channels} channels: expected at least 1 of each")
        if config.channel_mixing and channels != config.num_channels:
            raise TitansError(f"the stream has {channels} channels and the model mixes {config.num_channels}")
        self.model, self._channels = model, channels
        self._static = self._known("static", static_covariates, [series, config.num_static_covariates])
        self._length: int = config.context_length
        dtype = torch.promote_types(model.dtype, torch.float32)
        # Deviations of twice this can be squared and summed over a window.
        self._largest = math.sqrt(torch.finfo(dtype).max / (4 * self._length))
        width = channels + config.num_future_covariates
        points = torch.full((series, 3 * self._length, width), torch.nan, device=model.device, dtype=dtype)
        state = None
        if memory and any(config.blocks):
            with torch.no_grad():
                state = model.initial_state(series * (1 if config.channel_mixing else channels))
        self.held = Held(points, torch.zeros(series, dtype=torch.long, device=model.device), state)

    @property
    def memory(self) -> bool:
        """Whether the stream remembers its windows."""
        return self.held.state is not None

    @property
    def seen(self) -> Tensor:
        """How many points of each series the next forecast looks at, `[S]`: all that came, at most the look-back."""
        return self.held.filled.clamp(max=self._length)

    @property
    def nbytes(self) -> int:
        """Bytes that the stream holds; they do not grow, but for a few once its rows are counted each for itself."""
        points, filled, state = self.held
        return points.nbytes + filled.nbytes + (0 if state is None else state.nbytes)

    @torch.no_grad()
    def update(
        self,
        points: Tensor,
        counts: Tensor | None = None,
        future_covariates: Tensor | None = None,
        *,
        learn: bool = True,
    ) -> None:
        """Read new points: all of them or, where that is interrupted or refused, none.

        Args:
            points: `[S, n, C]`, or `[n, C]` of a single series; NaN where a value is missing.
            counts: how many of them are new in each series `[S]`; the rest, on the right, is padding, whatever stands
                there. Default: n.
            future_covariates: the covariates of the new points `[S, n, F]`, where the model has some.
            learn: False: the memory stays as it is; the windows that become whole are not read. Default True.

        Raises:
            TitansError: points of another shape, one that is infinite or too large to be squared, counts that are none,
                or covariates of another shape or not finite.
        """
        points, counts = self._checked(points, counts)
        count = self.model.config.num_future_covariates
        if (known := self._known("future", future_covariates, [*points.shape[:2], count])) is not None:
            points = torch.cat([points, known], -1)
        held = self.held._replace(points=self.held.points.clone())
        for start in range(0, points.shape[1], self._length):  # at most one window becomes whole with each
            some = points[:, start : start + self._length]
            held = self._push(held, some, (counts - start).clamp(0, self._length), learn)
        self.held = held  # at once

    def forecast(self, future_covariates: Tensor | None = None) -> ForecastOutput:
        """Forecast what follows the last point of each series; the stream stays as it is.

        Args:
            future_covariates: the covariates of the horizon `[S, H, F]`, where the model has some.

        Returns:
            The forecast, `[S, H, C]`, without a cache.

        Raises:
            TitansError: a series has no point yet, or covariates have another shape or are not finite.
        """
        points, filled, state = self.held
        config = self.model.config
        shape = [len(points), config.horizon, config.num_future_covariates]
        known = self._known("future", future_covariates, shape)
        if not bool((filled > 0).all()):
            raise TitansError("there is nothing to forecast from: call update with at least one point of each series")
        index = filled.unsqueeze(1) + torch.arange(-self._length, 0, device=filled.device)  # [S, L]
        window = points.gather(1, index.clamp(min=0).unsqueeze(-1).expand(-1, -1, points.shape[2]))
        window = torch.where((index >= 0).unsqueeze(-1), window, torch.nan)
        return self._read(window, state, False, known)

    def fork(self) -> ForecastStream:
        """Return a stream that stands where this one does and goes on by itself."""
        return copy.copy(self)  # what a stream holds is never written in place

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the stream to one file that `load` reads; a crash leaves the old file or the new one.

        Args:
            path: the file; its folder exists.

        Raises:
            TitansError: the model's weights have changed since the stream began.
        """
        atomic.write(Path(path), self.dump(), atomic.PRIVATE)

    def dump(self) -> bytes:
        """Return the content of the file that `save` writes; raises as it does."""
        points, filled, state = self.held
        tensors, metadata = {"points": points.cpu(), "filled": filled.cpu()}, {"fingerprint": fingerprint(self.model)}
        if state is not None:
            memory, integers = take_apart(state, self.model)
            tensors |= {f"{_MEMORY}{name}": x for name, x in memory.items()}
            metadata["integers"] = json.dumps(integers)
        if self._static is not None:
            tensors["static"] = self._static.cpu()
        return STREAM_FILE.dump(tensors, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: TitansForForecasting) -> ForecastStream:
        """Read a stream that `save` wrote.

        Args:
            path: the file.
            model: the model that the stream belongs to: the same weights and configuration.

        Returns:
            The stream, with memory if it was saved with one.

        Raises:
            TitansError: the file is damaged or missing, or the stream belongs to another model.
        """
        try:
            return cls.parse(atomic.read(Path(path)), model)
        except OSError as error:
            raise TitansError(f"cannot read the stream file {path} ({error.strerror}): is the path right?") from error
        except TitansError as error:
            raise TitansError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, data: bytes, model: TitansForForecasting) -> ForecastStream:
        """Read what `dump` returned, from anywhere: nothing in it is run or trusted; raises as `load`."""
        tensors, metadata = STREAM_FILE.load(data)
        if metadata.get("fingerprint") != fingerprint(model):
            raise TitansError("the stream belongs to another model: load the model that it was saved with")
        memory = {name.removeprefix(_MEMORY): x for name, x in tensors.items() if name.startswith(_MEMORY)}
        try:
            points, filled = tensors["points"], tensors["filled"]
            series, _, width = points.shape
        except (KeyError, ValueError) as error:
            raise STREAM_FILE.damaged(error) from error
        state = put_together(memory, metadata.get("integers", ""), model) if memory else None
        channels = width - model.config.num_future_covariates
        stream = cls(model, series, channels, state is not None, tensors.get("static"))
        empty, alike = stream.held, [(x.shape, x.dtype) for x in (points, filled)]
        if (
            alike != [(x.shape, x.dtype) for x in (empty.points, empty.filled)]
            or bool(((filled < 0) | (filled >= 2 * stream._length)).any())
            or bool((points[..., :channels].abs() > stream._largest).any())
            or (state and state.rows) != (empty.state and empty.state.rows)
        ):
            raise TitansError("its parts do not fit together: use a copy that is whole")
        stream.held = Held(points.to(model.device), filled.to(model.device), state)
        return stream

    def _checked(self, points: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return new points `[S, n, C]` and their counts `[S]`, where the stream's are and of its types."""
        series, channels = len(self.held.points), self._channels
        points = points.unsqueeze(0) if points.dim() == 2 else points
        if points.dim() != 3 or points.shape[0] != series or points.shape[2] != channels:
            raise TitansError(
                f"the new points have the shape {tuple(points.shape)}, expected [{series}, steps, {channels}]"
            )
        points, steps = points.to(self.held.points), points.shape[1]
        counts = torch.full((series,), steps) if counts is None else counts
        if counts.shape != (series,) or counts.is_floating_point() or bool(((counts < 0) | (counts > steps)).any()):
            raise TitansError(f"counts must hold a whole number from 0 to {steps} for each of {series} series")
        counts = counts.to(self.held.filled)
        real = torch.arange(steps, device=counts.device) < counts.unsqueeze(1)
        if bool((real.unsqueeze(-1) & (points.abs() > self._largest)).any()):
            raise TitansError(
                f"a new point is beyond ±{self._largest:.0e}: scale the series, and let NaN stand for a gap"
            )
        return points, counts

    def _push(self, held: Held, points: Tensor, counts: Tensor, learn: bool) -> Held:
        """Append at most L points to each series, in place, and hand over the oldest window where two are whole."""
        kept, filled, state = held
        real = torch.arange(points.shape[1], device=points.device) < counts.unsqueeze(1)
        rows, columns = real.nonzero(as_tuple=True)
        kept[rows, filled[rows] + columns] = points[rows, columns]
        filled = filled + counts
        whole = filled >= 2 * self._length
        if not bool(whole.any()):
            return Held(kept, filled, state)
        if state is not None and learn:
            after = self._read(kept[:, : self._length], state, True).cache
            assert after is not None  # asked for
            state = after.where(whole.repeat_interleave(state.rows // len(whole)), state)
        moved = kept.roll(-self._length, 1)
        moved[:, -self._length :] = torch.nan
        return Held(torch.where(whole.view(-1, 1, 1), moved, kept), filled - self._length * whole, state)

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

    def _known(self, kind: str, x: Tensor | None, expected: list[int]) -> Tensor | None:
        """Check covariates of a kind; None where the model has none."""
        if x is None and not expected[-1]:
            return None
        if x is None or list(x.shape) != expected or not expected[-1]:
            found = "missing" if x is None else f"of the shape {tuple(x.shape)}"
            raise TitansError(f"the {kind} covariates are {found}, expected {expected if expected[-1] else 'none'}")
        if not bool(x.isfinite().all()):
            raise TitansError(f"one of the {kind} covariates is NaN or infinite: covariates must be known")
        return x.detach().to(self.model.device, torch.promote_types(self.model.dtype, torch.float32))
