"""The fingerprint of a model: of what in its configuration and weights decides what a memory state means."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from titans.models.origin import weights_version

# Fields that no state depends on: the head, the tokenizer's business, and how the weights once came about.
_IRRELEVANT = {
    "use_cache",
    "tie_word_embeddings",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}

# The digest of the weights as of a version: reading gigabytes takes seconds.
_known: WeakKeyDictionary[nn.Module, tuple[int, str]] = WeakKeyDictionary()


def base(model: Any) -> nn.Module:
    """Return the `TitansModel` inside a model with a head; the head does not matter to a state."""
    inner: nn.Module = model.base_model
    return inner


def relevant_config(model: Any) -> dict[str, Any]:
    """Return the fields of a model's configuration that matter to its states."""
    return {name: getattr(model.config, name) for name in model.config.hints() if name not in _IRRELEVANT}


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the part of a fingerprint that stands for the configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def fingerprint(model: Any) -> str:
    """Name the configuration and the weights of a model; equal for a language model and the `TitansModel` in it.

    The weights' part is kept until a weight is replaced or written in place. Writing through `.data` is not noticed.

    Args:
        model: a `TitansModel` or `TitansForCausalLM`.

    Returns:
        `"<configuration>-<weights>"`, 16 hexadecimal digits each.
    """
    inner = base(model)
    version = weights_version(inner)
    known = _known.get(inner)
    if known is None or known[0] != version:
        known = _known[inner] = version, tensors_digest(inner.state_dict())[:16]
    return f"{config_digest(relevant_config(model))}-{known[1]}"


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
