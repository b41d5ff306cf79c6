"""The folder of a forecaster: its model, its memory, and what it knows of its series.

`forecaster.json` names a sub-folder that holds the model as `save_pretrained` writes it and the stream as
`ForecastStream.save` does. Each save makes a new sub-folder, then replaces that file, then removes the old one: so
there is always a whole forecaster.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
from safetensors import SafetensorError

from titans.errors import TitansError
from titans.forecasting._pandas import pd
from titans.forecasting.series_state import SeriesState
from titans.forecasting.stream import ForecastStream
from titans.forecasting.time_zones import to_naive
from titans.io import atomic
from titans.models.forecasting import TitansForForecasting
from titans.models.forecasting_configuration import TitansForecastingConfig

if TYPE_CHECKING:
    from titans.forecasting.forecaster import TitansForecaster

INDEX = "forecaster.json"
FORMAT, VERSION = "titans-forecaster", 2
_CONFIG, _WEIGHTS, _STREAM = "config.json", "model.safetensors", "stream.safetensors"
_FLOATS = ("mean", "std", "low", "high", "covariate_mean", "covariate_std", "profile")
_REMEDY = "use a copy that is whole, or fit again"


def save(forecaster: TitansForecaster, folder: str | os.PathLike[str]) -> None:
    """Write a forecaster; see `TitansForecaster.save`."""
    folder = Path(folder)
    state, stream = forecaster._fitted()
    content = {"settings": forecaster.settings, "series": _write_series_state(state)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _parts(folder)
        part = folder / uuid.uuid4().hex
        part.mkdir()
        stream.model.save_pretrained(part)
        stream.save(part / _STREAM)
        for path in part.iterdir():
            atomic.sync(path)
        atomic.sync_folder(part)
        digests = {path.name: _digest(atomic.read(path)) for path in sorted(part.iterdir())}
        index = {"format": FORMAT, "version": VERSION, "part": part.name, "files": digests, **content}
        text = json.dumps({**index, "checksum": _digest(_text(index))}, indent=1)
        atomic.write(folder / INDEX, text.encode())
    except OSError as error:
        raise TitansError(f"cannot write the forecaster to {folder} ({error.strerror}): is the path right?") from error
    for old in before:
        shutil.rmtree(old, ignore_errors=True)


def load(kind: type[TitansForecaster], folder: str | os.PathLike[str]) -> TitansForecaster:
    """Read a forecaster; see `TitansForecaster.load`."""
    folder = Path(folder)
    index = _read_index(folder)
    try:
        part = folder / index["part"]
        files = {name: _whole(part / name, digest) for name, digest in index["files"].items()}
        forecaster = kind(**index["settings"])
        config = TitansForecastingConfig.from_dict(json.loads(files[_CONFIG]))
        model = TitansForForecasting(config)
        model.load_state_dict(safetensors.torch.load(files[_WEIGHTS]))
        model.train(False)
        state = _read_series_state(index["series"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
        if isinstance(error, TitansError):
            raise TitansError(f"{folder}: {error}") from error
        raise TitansError(f"the forecaster in {folder} is damaged ({_short(error)}): {_REMEDY}") from error
    stream = ForecastStream.load(part / _STREAM, model)
    if len(stream.seen) != len(state.ids) or config.num_future_covariates != len(state.covariates):
        raise TitansError(f"the forecaster in {folder} is damaged (its parts do not fit together): {_REMEDY}")
    forecaster.model, forecaster.series_state, forecaster.stream = model, state, stream
    return forecaster


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        data = atomic.read(folder / INDEX)
    except OSError as error:
        raise TitansError(f"{folder} holds no forecaster ({INDEX}: {error.strerror}): is the path right?") from error
    try:
        index = json.loads(data)
        if index["format"] != FORMAT:
            raise ValueError("it is of another kind")
        if index["version"] != VERSION:
            raise TitansError(
                f"the forecaster in {folder} has version {index['version']!r} and this is Titans for version "
                f"{VERSION}: use the Titans that wrote it"
            )
        checksum = index.pop("checksum")
        if checksum != _digest(_text(index)) or not re.fullmatch(r"[0-9a-f]{32}", index["part"]):
            raise ValueError("its checksum is wrong")
    except TitansError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TitansError(
            f"{folder / INDEX} describes no forecaster, or is damaged ({_short(error)}): {_REMEDY}"
        ) from error
    return dict(index)


def _whole(path: Path, digest: str) -> bytes:
    try:
        data = atomic.read(path)
    except OSError as error:
        raise TitansError(f"cannot read {path.name} ({error.strerror}): {_REMEDY}") from error
    if _digest(data) != digest:
        raise TitansError(f"{path.name} is damaged (its checksum is wrong): {_REMEDY}")
    return data


def _parts(folder: Path) -> list[Path]:
    """The sub-folders that earlier saves made, whole or not."""
    return [path for path in folder.iterdir() if re.fullmatch(r"[0-9a-f]{32}", path.name) and path.is_dir()]


def _write_series_state(state: SeriesState) -> dict[str, Any]:
    last = state.last
    dates = isinstance(last, pd.DatetimeIndex)
    written = {
        "ids": [_plain(name) for name in state.ids],
        "frequency": state.frequency,
        "clock": [int(time) for time in (last.asi8 if dates else last)],
        "unit": last.unit if dates else None,
        "zone": None if state.zone is None else str(state.zone),
        "covariates": state.covariates,
        "steps": state.steps.tolist(),
        **{name: getattr(state, name).tolist() for name in _FLOATS},
    }
    try:
        same = bool((_read_series_state(written).ends == state.ends).all())
    except (ValueError, KeyError, TypeError) as error:  # a time zone that has no name
        raise TitansError(f"the time zone {state.zone} cannot be saved: convert ds to a named one") from error
    assert same  # what is written is what is read
    return written


def _read_series_state(written: dict[str, Any]) -> SeriesState:
    zone, earlier = written["zone"], "clock" not in written  # until then, "last" was in UTC
    last = pd.Index(np.array(written["last" if earlier else "clock"], dtype=np.int64))
    if written["unit"] is not None:
        last = pd.DatetimeIndex(last.to_numpy().view(f"M8[{written['unit']}]"))
        if zone is not None:
            zone = last.tz_localize("UTC").tz_convert(zone).tz
            last = to_naive(last.tz_localize("UTC").tz_convert(zone), written["frequency"]) if earlier else last
    numbers: dict[str, Any] = {name: np.array(written[name], dtype=np.float64) for name in _FLOATS}
    names = {name: written[name] for name in ("ids", "frequency", "covariates")}
    state = SeriesState(**names, last=last, zone=zone, steps=np.array(written["steps"], dtype=np.int64), **numbers)
    series, covariates = (len(state.ids),), (len(state.covariates),)
    expected = [series] * 4 + [covariates] * 2 + [(*series, max(state.profile.shape[-1], 1))]
    if state.steps.shape != series or last.shape != series or [numbers[name].shape for name in _FLOATS] != expected:
        raise ValueError("its parts do not fit together")
    return state


def _plain(name: object) -> str | int | float | bool:
    plain = name.item() if isinstance(name, np.generic) else name
    if not isinstance(plain, str | int | float | bool):
        raise TitansError(f"the series is called {name!r}, which cannot be saved: name series by text or numbers")
    return plain


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(index: dict[str, Any]) -> bytes:
    return json.dumps(index, sort_keys=True).encode()


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
