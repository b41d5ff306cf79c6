"""The fingerprint of a model: of what in its configuration and weights decides what a memory state means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from titans.models.provenance import weights_version

# Fields that no state depends on: the head, the tokenizer's business, and how the weights once came about.
_IRRELEVANT = {
    "use_cache",
    "tie_word_embeddings",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}

_DEFAULT = object()  # in place of a field that is not told

# The digest of the weights as of a version: reading gigabytes takes seconds.
_known: WeakKeyDictionary[nn.Module, tuple[int, str]] = WeakKeyDictionary()


def base(model: Any) -> Any:
    """Return the `TitansModel` inside a model with a head; the head does not matter to a state."""
    return model.base_model


def relevant_config(model: Any) -> dict[str, Any]:
    """Return the fields of a model's configuration that matter to its states: the variant, and what is no default.

    What is left at its default says nothing, so that a field that a later version adds changes no fingerprint.
    """
    defaults = type(model.config).flat_defaults()
    return {
        name: value
        for name, value in model.config.flat_fields().items()
        if name not in _IRRELEVANT and (name == "variant" or value != defaults.get(name, _DEFAULT))
    }


def differences(config: Mapping[str, Any], model: Any) -> list[str]:
    """Name the fields in which a saved configuration, without its defaults, is not that of a model."""
    mine = relevant_config(model)
    return [name for name in sorted({*config, *mine}) if config.get(name, _DEFAULT) != mine.get(name, _DEFAULT)]


def fingerprint(model: Any) -> str:
    """Name the configuration and the weights of a model; equal for a language model and the `TitansModel` in it.

    The weights' part is kept until a weight is replaced or written in place. Writing through `.data` is not noticed.

    Args:
        model: a `TitansModel` or `TitansForCausalLM`.

    Returns:
        `"<configuration>-<weights>"`, 16 hexadecimal digits each; fields at their defaults do not count.
    """
    inner = base(model)
    version = weights_version(inner)
    known = _known.get(inner)
    if known is None or known[0] != version:
        known = _known[inner] = version, tensors_digest(dict(_plain(inner.state_dict())))[:16]
    config = json.dumps(relevant_config(model), sort_keys=True)
    return f"{hashlib.sha256(config.encode()).hexdigest()[:16]}-{known[1]}"


def _plain(weights: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Name the plain tensors that weights consist of: quantised ones hold several, each as libraries pack them."""
    for name, weight in weights.items():
        if isinstance(weight, tuple | list):
            yield from _plain({f"{name}.{i}": part for i, part in enumerate(weight)})
        elif hasattr(weight, "__tensor_flatten__"):  # a tensor subclass, such as torchao's
            yield from _plain({f"{name}.{part}": getattr(weight, part) for part in weight.__tensor_flatten__()[0]})
        elif isinstance(weight, Tensor):
            yield name, weight.dequantize() if weight.is_quantized else weight


def tensors_digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Hash named tensors and a text: names, types, shapes and bytes.

    Args:
        tensors: the tensors by name, in any order, on any device.
        text: what else the digest covers.

    Returns:
        The sha256 in hexadecimal digits.
    """
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
