"""The settings of a forecaster: checked before anything is read, and what follows from them for some series."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from titans.errors import TitansError
from titans.forecasting.alignment import check_frequency
from titans.forecasting.long_frames import ID, TARGET, TIME
from titans.forecasting.sentences import listed
from titans.forecasting.windows import MINIMUM_POINTS
from titans.models.forecasting_configuration import TitansForecastingConfig

_LONGEST = 512  # steps of a window that is chosen here, unless the horizon is longer
_SEEDS = 2**63  # torch takes no more
_SET_HERE = ("num_channels", "num_future_covariates", "num_static_covariates", "context_length", "horizon", "quantiles")


@dataclasses.dataclass(frozen=True)
class ForecasterSettings:
    """What a `TitansForecaster` was made with; its documentation says what each means.

    Raises:
        TitansError: a setting is out of range, or there is none of this name.
    """

    h: int
    input_size: int | None
    freq: Any
    level: Any
    futr_exog_list: Any
    variant: str
    train_windows: int
    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    seconds: float | None
    config: dict[str, Any]

    def __post_init__(self) -> None:
        """Refuse settings that cannot work, and bring the others to the form in which JSON has them."""
        own = {"freq": getattr(self.freq, "freqstr", self.freq)}  # of a pandas offset
        own |= {"level": _check_levels(self.level), "futr_exog_list": _check_names(self.futr_exog_list)}
        for name, value in own.items():
            object.__setattr__(self, name, value)
        for name in ("h", "train_windows", "epochs", "batch_size"):
            check_whole(name, getattr(self, name))
        _check_positive("learning_rate", self.learning_rate)
        if self.seconds is not None:
            _check_positive("seconds", self.seconds)
        check_whole("seed", self.seed, 0)
        if self.seed >= _SEEDS:
            raise TitansError(f"seed is {self.seed}, expected less than {_SEEDS}")
        if self.freq is not None:
            check_frequency(self.freq)
        if self.config.get("tokens", "patch") != "patch" or self.config.get("channel_mixing"):
            raise TitansError("each series is a stream of its own here: leave tokens and channel_mixing as they are")
        if unknown := sorted(set(self.config) - (set(TitansForecastingConfig.hints()) - set(_SET_HERE))):
            raise TitansError(
                f"there is no setting {listed(unknown)}: expected an argument of TitansForecaster, or a field of "
                "TitansForecastingConfig that none of these decides"
            )
        self.model_config(_LONGEST if self.input_size is None else self.input_size, 0)

    @property
    def quantiles(self) -> list[float] | None:
        """The levels of the model's quantiles: the median, and two for each interval."""
        ends = [level / 2 for level in self.level]
        return sorted({0.5, *((50 + sign * end) / 100 for end in ends for sign in (-1, 1))}) if ends else None

    def learned(self, steps: int) -> int:
        """Say how many of the steps of a series are learned from; the others are for validation."""
        rest = steps - max(self.h, steps // 10)
        return rest if rest >= 2 * self.h + MINIMUM_POINTS else steps

    def window(self, lengths: Sequence[int], season: int) -> int:
        """Say how long a window of series of these lengths is, which repeat themselves after `season` steps."""
        if self.input_size is not None:
            return self.input_size
        wanted = min(max(self.h, 4 * season), max(_LONGEST, self.h))
        return max(min(wanted, (int(np.median(lengths)) - self.h) // 2), MINIMUM_POINTS)

    def model_config(self, context_length: int, statics: int) -> TitansForecastingConfig:
        """The configuration of the model for windows of a length and a number of static covariates."""
        patch = self.config.get("patch_length", min(16, max(context_length // 4, 1)))
        stride = self.config.get("patch_stride", max(patch // 2, 1) if isinstance(patch, int) else patch)
        if self.input_size is None and isinstance(patch, int) and isinstance(stride, int):
            patch, stride = min(patch, context_length), min(stride, context_length)  # nobody asked for this window
        try:
            return TitansForecastingConfig(
                variant=self.variant,
                context_length=context_length,
                horizon=self.h,
                quantiles=self.quantiles,
                num_future_covariates=len(self.futr_exog_list),
                num_static_covariates=statics,
                **{**self.config, "patch_length": patch, "patch_stride": stride},
            )
        except ValueError as error:
            raise TitansError(str(error)) from error


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TitansError(f"{name} is {value!r}, expected a whole number of at least {least}")


def _check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise TitansError(f"{name} is {value!r}, expected a number above 0")


def _check_levels(level: Any) -> list[float]:
    """Return the levels of the intervals, rising; whole ones as whole numbers, which is how columns are called."""
    try:
        levels = sorted({float(one) for one in ([] if level is None else level)})
    except (TypeError, ValueError):
        levels = [math.nan]
    if not all(0 < one < 100 for one in levels):
        raise TitansError(f"level is {level!r}, expected percentages between 0 and 100, such as [80, 95]")
    return [int(one) if one.is_integer() else one for one in levels]


def _check_names(names: Any) -> list[str]:
    listing = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    wrong = [name for name in listing if not isinstance(name, str) or name in (ID, TIME, TARGET)]
    if wrong or len(set(listing)) < len(listing):
        raise TitansError(
            f"futr_exog_list is {names!r}, expected names of columns other than unique_id, ds and y, each once"
        )
    return listing
