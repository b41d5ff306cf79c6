"""The file of a forecaster: its settings, its model, its stream, and what it knows of its series."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.forecaster_settings import ForecasterSettings
from titans.forecasting.series_state import SeriesState
from titans.forecasting.stream import ForecastStream
from titans.io import atomic
from titans.models.forecasting import TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig
from titans.persistence.tensor_file import TensorFile

FORECASTER_FILE = TensorFile("forecaster file", "titans-forecaster", "2")
_WEIGHT = "model."  # before the names of the model's weights
_FLOATS = ("mean", "std", "low", "high", "covariate_mean", "covariate_std", "profile")
_REMEDY = "use a copy that is whole, or fit again"


def save(
    path: str | os.PathLike[str], settings: ForecasterSettings, state: SeriesState, stream: ForecastStream
) -> None:
    """Write a forecaster; see `TitansForecaster.save`."""
    path = Path(path)
    tensors = {_WEIGHT + name: weight.cpu() for name, weight in stream.model.state_dict().items()}
    tensors |= {"stream": _to_tensor(stream.dump()), "series": _to_tensor(json.dumps(series_to_json(state)).encode())}
    texts = {"settings": dataclasses.asdict(settings), "config": stream.model.config.to_dict()}
    data = FORECASTER_FILE.dump(tensors, {name: json.dumps(text) for name, text in texts.items()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, data)
    except OSError as error:
        raise TitansError(f"cannot write the forecaster to {path} ({error.strerror}): is the path right?") from error


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], SeriesState, ForecastStream]:
    """Read a forecaster: its settings, its series and its stream; see `TitansForecaster.load`."""
    path = Path(path)
    if path.is_dir():
        raise TitansError(f"{path} is a folder, as Titans wrote once, and a forecaster now is one file: fit again")
    try:
        tensors, texts = FORECASTER_FILE.load(atomic.read(path))
    except OSError as error:
        raise TitansError(f"cannot read the forecaster file {path} ({error.strerror}): is the path right?") from error
    except TitansError as error:
        raise TitansError(f"{path}: {error}") from error
    try:
        config = TitansForecastingConfig.from_dict(json.loads(texts["config"]))
        model = TitansForForecasting(config)
        weights = {name: tensor for name, tensor in tensors.items() if name.startswith(_WEIGHT)}
        model.load_state_dict({name.removeprefix(_WEIGHT): tensor for name, tensor in weights.items()})
        model.train(False)
        stream = ForecastStream.parse(_to_bytes(tensors["stream"]), model)
        state = series_from_json(json.loads(_to_bytes(tensors["series"])))
        if len(stream.seen) != len(state.ids) or config.num_future_covariates != len(state.covariates):
            raise ValueError("its parts do not fit together")
        return dict(json.loads(texts["settings"])), state, stream
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise TitansError(
            f"the forecaster in {path} is damaged ({str(error).partition(chr(10))[0]}): {_REMEDY}"
        ) from error


def series_to_json(state: SeriesState) -> dict[str, Any]:
    """Write what is known of the series as JSON has it.

    Raises:
        TitansError: the time zone has no name, or a series is called by neither a text nor a number.
    """
    last = state.last
    dates = isinstance(last, pd.DatetimeIndex)
    written = {
        "ids": [_plain(name) for name in state.ids],
        "frequency": state.frequency,
        "last": [int(time) for time in (last.asi8 if dates else last)],
        "unit": last.unit if dates else None,
        "zone": None if state.zone is None else str(state.zone),
        "covariates": state.covariates,
        "steps": state.steps.tolist(),
        **{name: getattr(state, name).tolist() for name in _FLOATS},
    }
    try:
        same = bool((series_from_json(written).ends == state.ends).all())
    except (ValueError, KeyError, TypeError) as error:  # a time zone that has no name
        raise TitansError(f"the time zone {state.zone} cannot be saved: convert ds to a named one") from error
    assert same  # what is written is what is read
    return written


def series_from_json(written: dict[str, Any]) -> SeriesState:
    """Read what `series_to_json` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is damaged.
    """
    zone = written["zone"]
    last = pd.Index(np.array(written["last"], dtype=np.int64))
    if written["unit"] is not None:
        last = pd.DatetimeIndex(last.to_numpy().view(f"M8[{written['unit']}]"))
        zone = None if zone is None else last.tz_localize("UTC").tz_convert(zone).tz
    numbers: dict[str, Any] = {name: np.array(written[name], dtype=np.float64) for name in _FLOATS}
    names = {name: written[name] for name in ("ids", "frequency", "covariates")}
    state = SeriesState(**names, last=last, zone=zone, steps=np.array(written["steps"], dtype=np.int64), **numbers)
    series, covariates = (len(state.ids),), (len(state.covariates),)
    expected = [series] * 4 + [covariates] * 2 + [(*series, max(state.profile.shape[-1], 1))]
    if state.steps.shape != series or last.shape != series or [numbers[name].shape for name in _FLOATS] != expected:
        raise ValueError("its parts do not fit together")
    return state


def _to_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _plain(name: object) -> str | int | float | bool:
    plain = name.item() if isinstance(name, np.generic) else name
    if not isinstance(plain, str | int | float | bool):
        raise TitansError(f"the series is called {name!r}, which cannot be saved: name series by text or numbers")
    return plain
