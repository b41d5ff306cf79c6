"""The token mixers that a configuration can name, each with what builds it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from titans.layers.mixer import Mixer

MIXERS: dict[str, Callable[[Any], Mixer]] = {}


def register_mixer(name: str, layer: type[Mixer], **options: Any) -> None:
    """Have `TitansConfig(layers=[name, ...])` build a layer, by `layer.from_config(config, **options)`.

    Args:
        name: of the mixer. Saved configurations hold it: register the mixers of a model before it is loaded.
        layer: the class.
        **options: what is fixed whatever the configuration says.

    Raises:
        ValueError: there is a mixer of this name, or the layer is no `titans.layers.mixer.Mixer`.
    """
    given: Any = layer
    if not name or not isinstance(given, type) or not issubclass(given, Mixer):
        raise ValueError(
            f"register_mixer({name!r}, {layer!r}) needs a name and a subclass of titans.layers.mixer.Mixer"
        )
    if name in MIXERS:
        raise ValueError(f"there is a mixer {name} already: choose another name")
    MIXERS[name] = partial(layer.from_config, **options)
