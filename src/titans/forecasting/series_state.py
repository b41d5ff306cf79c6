"""What a forecaster knows of its series beside the stream: names, scales, and up to when each was read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.alignment import steps_after
from titans.forecasting.frequency import future_times
from titans.forecasting.long_frames import ID, TARGET, TIME, Panel, mean_per_step, read_rows, rows_by_series
from titans.forecasting.numbers import Floats, to_numbers
from titans.forecasting.seasonal import seasonal_profile
from titans.forecasting.sentences import listed
from titans.forecasting.time_zones import Integers, from_naive, to_naive, zone_of
from titans.forecasting.times import parse_times

LARGEST_GAP = 100_000
"""Steps between two rows of a series; more are taken for a wrong time stamp."""
_BOUND = 1e9  # of scaled numbers: their squares must stay finite in float32


@dataclasses.dataclass(frozen=True)
class Points:
    """New points of some series, scaled and without the season.

    Args:
        values: one of each series, `[T, 1]`; NaN where a value is missing.
        known: their covariates, `[T, F]`; 0, the mean, where one was not given.
    """

    values: list[Tensor]
    known: list[Tensor]


@dataclasses.dataclass(frozen=True)
class SeriesState:
    """The series that a forecaster follows.

    Args:
        ids: their names `[S]`.
        frequency: the step of time.
        last: the time of the last point read of each, naive (see `to_naive`) `[S]`.
        zone: the time zone; None where times have none.
        steps: how many were read of each, gaps included `[S]`, int64.
        mean: of each, over the steps that training learns from `[S]`.
        std: the deviation over these; over all steps where that is 0; 1 where that is, too `[S]`.
        profile: what each does at each place of its season of W steps, scaled `[S, W]`; see `seasonal_profile`.
        low: the lowest value read of each `[S]`.
        high: the highest; what equals the lowest is constant `[S]`.
        covariates: names of the covariates `[F]`.
        covariate_mean: over all series `[F]`.
        covariate_std: over all series; 1 where it is 0 `[F]`.
    """

    ids: list[object]
    frequency: str | int
    last: pd.Index
    zone: Any
    steps: Integers
    mean: Floats
    std: Floats
    profile: Floats
    low: Floats
    high: Floats
    covariates: list[str]
    covariate_mean: Floats
    covariate_std: Floats

    @classmethod
    def open(
        cls, panel: Panel, covariates: Sequence[str], lengths: Sequence[int], season: int
    ) -> tuple[SeriesState, Points]:
        """Begin with the series of a panel, of each of which training learns from a length, and their points."""
        columns = _places(covariates, panel.covariates)
        known = [one.covariates[:, columns] for one in panel.series]
        scales = []  # of each series: mean, std, profile, low, high
        for one, length in zip(panel.series, lengths, strict=True):
            learned = one.y[:length] if np.isfinite(one.y[:length]).any() else one.y
            mean, std = np.nanmean(learned), _deviation(learned) or _deviation(one.y) or 1.0
            profile = seasonal_profile(torch.from_numpy((learned - mean) / std).unsqueeze(-1), season).squeeze(-1)
            scales.append((mean, std, profile.numpy(), np.nanmin(one.y), np.nanmax(one.y)))
        means, stds, profiles, lows, highs = (np.array(numbers) for numbers in zip(*scales, strict=True))
        given = pd.DataFrame(np.concatenate(known))
        covariate_std = given.std(ddof=0).fillna(0.0).to_numpy()
        times = [to_naive(one.times, panel.frequency)[-1:] for one in panel.series]
        state = cls(
            ids=[one.unique_id for one in panel.series],
            frequency=panel.frequency,
            last=times[0].append(times[1:]),
            zone=zone_of(panel.series[0].times),
            steps=np.zeros(len(panel.series), dtype=np.int64),
            mean=means,
            std=stds,
            profile=profiles,
            low=lows,
            high=highs,
            covariates=list(covariates),
            covariate_mean=given.mean().fillna(0.0).to_numpy(),
            covariate_std=np.where(covariate_std > 0, covariate_std, 1.0),
        )
        numbers = enumerate(zip((one.y for one in panel.series), known, strict=True))
        values = [(state._scaled(y, series), state._scaled_covariates(given)) for series, (y, given) in numbers]
        state = dataclasses.replace(state, steps=np.array([len(one.y) for one in panel.series]))
        return state, Points([value for value, _ in values], [covariate for _, covariate in values])

    def read(self, frame: pd.DataFrame, notes: list[str]) -> tuple[SeriesState, Points]:
        """Continue with new rows of some of the series, a long frame; steps without a row are missing values.

        Returns:
            The state after these rows, and the new points.

        Raises:
            TitansError: a row of an unknown series, one that is not later than what was read, or one off the grid.
        """
        rows = read_rows(frame, notes, like=self.ends)
        columns = _places(self.covariates, rows.covariates)
        place = {name: number for number, name in enumerate(self.ids)}
        if unknown := [name for name in rows.ids if name not in place]:
            raise TitansError(
                f"unknown series {listed(unknown)}: expected those that fit was given ({listed(self.ids)}); fit again "
                "to add a series"
            )
        times = self._like(rows.times)
        by_series = rows_by_series(times, rows.codes, notes)
        new = [np.empty((0, 1 + len(self.covariates)))] * len(self.ids)
        last = [self.last[number : number + 1] for number in range(len(self.ids))]
        for name, members in zip(rows.ids, by_series, strict=True):
            number = place[name]
            steps = self._steps(number, times[members])
            values = rows.values[members][:, [0, *(1 + np.array(columns, int))]]
            new[number] = mean_per_step(values, steps - 1, steps[-1])
            last[number] = future_times(last[number], self.frequency, int(steps[-1]))[-1:]
        scaled = [self._scaled(one[:, 0], number) for number, one in enumerate(new)]
        state = dataclasses.replace(
            self,
            last=last[0].append(last[1:]),
            steps=self.steps + np.array([len(one) for one in new], dtype=np.int64),
            low=np.array([np.fmin.reduce(one[:, 0], initial=low) for one, low in zip(new, self.low, strict=True)]),
            high=np.array([np.fmax.reduce(one[:, 0], initial=high) for one, high in zip(new, self.high, strict=True)]),
        )
        return state, Points(scaled, [self._scaled_covariates(one[:, 1:]) for one in new])

    @property
    def ends(self) -> pd.Index:
        """The time of the last point read of each series `[S]`."""
        return from_naive(self.last, self.frequency, self.zone)

    def horizon(self, steps: int) -> list[pd.Index]:
        """The times that follow what was read of each series."""
        clocks = [
            future_times(self.last[number : number + 1], self.frequency, steps) for number in range(len(self.ids))
        ]
        return [from_naive(clock, self.frequency, self.zone) for clock in clocks]

    def known(self, frame: pd.DataFrame | None, steps: int) -> Tensor | None:
        """Look up the scaled covariates of the horizon in a long frame, `[S, H, F]`; None where none are used.

        Raises:
            TitansError: one is missing.
        """
        if not self.covariates:
            return None
        needed = [ID, TIME, *self.covariates]
        if frame is None or not isinstance(frame, pd.DataFrame) or (set(needed) - set(frame.columns)):
            found = "none was given" if frame is None else f"it has {listed(list(getattr(frame, 'columns', ['none'])))}"
            raise TitansError(
                f"the covariates {listed(self.covariates)} must be known for the next {steps:,} steps: give futr_df "
                f"with the columns {', '.join(needed)} ({found})"
            )
        times = parse_times(frame[TIME], like=self.ends)
        if times is None or not times.known.all():
            raise TitansError('the column "ds" of futr_df holds no time, or not in every row')
        stamps, codes = self._like(times.index), frame[ID].to_numpy()
        columns = np.stack([_known_numbers(frame[name]) for name in self.covariates], 1)
        found_rows = []
        for number, (name, wanted) in enumerate(zip(self.ids, self.horizon(steps), strict=True)):
            members = np.flatnonzero(codes == name)
            ahead = steps_after(self.last[number : number + 1], stamps[members], self.frequency)
            members, ahead = members[ahead > 0], ahead[ahead > 0]
            if len(np.unique(ahead)) < len(ahead):
                raise TitansError(f'futr_df has two rows of the series "{name}" with one time: keep one')
            rows = pd.Index(ahead).get_indexer(np.arange(1, steps + 1))
            values = columns[members[rows]] if len(members) else np.full((steps, len(self.covariates)), np.nan)
            lacking = (rows < 0) | ~np.isfinite(values).all(1)
            if lacking.any():
                raise TitansError(
                    f'futr_df lacks {listed(self.covariates)} of the series "{name}" at '
                    f"{wanted[int(lacking.argmax())]}: expected a number for each of the next {steps:,} steps"
                )
            found_rows.append(self._scaled_covariates(values))
        return torch.stack(found_rows)

    def unscaled(self, forecasts: Tensor) -> Floats:
        """Put forecasts `[S, H, Q]` on the scale of the series; a series of one constant value stays at it."""
        season = [self._season(number, forecasts.shape[1]) for number in range(len(forecasts))]
        y = forecasts.double().cpu().numpy() + np.stack(season)[:, :, None]
        y = y * self.std[:, None, None] + self.mean[:, None, None]
        constant = (self.low == self.high)[:, None, None]
        return np.asarray(np.where(constant, self.low[:, None, None], y))

    def _steps(self, number: int, stamps: pd.Index) -> Integers:
        """How many steps after the last point of a series the new rows lie."""
        name, last = self.ids[number], self.last[number : number + 1]
        exact = steps_after(last, stamps, self.frequency)
        if np.isnan(exact).any():
            raise TitansError(
                f'series "{name}": the time stamp {stamps[int(np.isnan(exact).argmax())]} does not lie on the grid '
                f"that goes on from {last[0]} with the frequency {self.frequency}"
            )
        steps: Integers = exact.astype(np.int64)
        if steps[0] < 1:
            raise TitansError(
                f'series "{name}": the row at {stamps[0]} is not later than {last[0]}, up to which the series was '
                "read: hand in new rows only"
            )
        gaps = np.diff(steps, prepend=0)
        if gaps.max() > LARGEST_GAP:
            raise TitansError(
                f'series "{name}": before the row at {stamps[int(gaps.argmax())]} lies a gap of {gaps.max():,} steps, '
                f"expected at most {LARGEST_GAP:,}: correct its time, or fit again"
            )
        return steps

    def _like(self, stamps: pd.Index) -> pd.Index:
        """Give time stamps the time zone and unit of those read before."""
        dates, expected = isinstance(stamps, pd.DatetimeIndex), isinstance(self.last, pd.DatetimeIndex)
        if dates != expected:
            kinds = {True: "dates", False: "whole numbers"}
            raise TitansError(f'the column "ds" holds {kinds[dates]}, but the series was read with {kinds[expected]}')
        if not dates:
            return stamps
        if (stamps.tz is None) != (self.zone is None):
            kinds = {True: "without a time zone", False: "with a time zone"}
            raise TitansError(
                f'the column "ds" holds times {kinds[stamps.tz is None]}, but the series was read '
                f"{kinds[self.zone is None]}"
            )
        return (stamps if stamps.tz is None else stamps.tz_convert(self.zone)).as_unit(self.last.unit)

    def _scaled(self, y: Floats, number: int) -> Tensor:
        scaled = (y - self.mean[number]) / self.std[number] - self._season(number, len(y))
        scaled = np.clip(scaled, -_BOUND, _BOUND)
        return torch.from_numpy(scaled.astype(np.float32)).unsqueeze(-1)

    def _season(self, number: int, count: int) -> Floats:
        """What the season does in the next steps of a series, `[count]`."""
        return np.asarray(self.profile[number, (self.steps[number] + np.arange(count)) % self.profile.shape[1]])

    def _scaled_covariates(self, values: Floats) -> Tensor:
        scaled = np.clip((values - self.covariate_mean) / self.covariate_std, -_BOUND, _BOUND)
        return torch.from_numpy(np.nan_to_num(scaled).astype(np.float32))


def _places(wanted: Sequence[str], found: Sequence[str]) -> list[int]:
    """Where the wanted covariates stand among the columns of numbers of a frame."""
    if missing := [name for name in wanted if name not in found]:
        raise TitansError(
            f"the frame has no column of numbers called {listed(missing)}, which futr_exog_list names: it has "
            f"{listed([TARGET, *found])}"
        )
    return [list(found).index(name) for name in wanted]


def _known_numbers(column: pd.Series) -> Floats:
    """Read a covariate of `futr_df`."""
    numbers = to_numbers(column)
    if numbers is None:
        raise TitansError(f'the column "{column.name}" of futr_df holds no numbers')
    return numbers


def _deviation(y: Floats) -> float:
    """The standard deviation of what is not missing; exactly 0 where that is constant."""
    return 0.0 if np.nanmin(y) == np.nanmax(y) else float(np.nanstd(y))
