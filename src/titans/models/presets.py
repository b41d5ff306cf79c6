"""Presets: every model at every scale, with as many parameters as its name says."""

from __future__ import annotations

import difflib
from typing import Any, NamedTuple

import torch

from titans.errors import TitansError
from titans.layers.neural_memory import NeuralMemory
from titans.layers.registry import MIXERS
from titans.models.configuration import VARIANTS, TitansConfig, merge_fields
from titans.models.modeling import TitansForCausalLM

TITANS = ("lmm", "mac", "mag", "mal")
MODELS = {f"titans-{name}" if name in TITANS else name: name for name in VARIANTS if name != "none"}  # their variants


class Scale(NamedTuple):
    """What all models of a scale have in common.

    Args:
        parameters: how many a model has, the embeddings included.
        layers: blocks.
        width: D.
        heads: of attention and memories.
        vocabulary: tokens: bytes and three special ones, or as in the paper.
        window: of the sliding-window attention.
        segment: of MAC and RMT.
        persistent: persistent tokens.
    """

    parameters: float
    layers: int
    width: int
    heads: int
    vocabulary: int = 32_000
    window: int = 2048
    segment: int = 512
    persistent: int = 128


SCALES = {  # the paper's from 170m on
    "tiny": Scale(0.3e6, 4, 64, 2, vocabulary=259, window=64, segment=64, persistent=4),
    "small": Scale(5e6, 8, 192, 3, vocabulary=259, window=256, segment=256, persistent=16),
    "170m": Scale(170e6, 12, 768, 12),
    "340m": Scale(340e6, 24, 1024, 16),
    "400m": Scale(400e6, 24, 1024, 16),
    "760m": Scale(760e6, 24, 1536, 16),
}
CHUNK = 16  # tokens of a memory's mini-batch, in the Titans and in TTT
LINEAR_CHUNK = 64  # tokens that linear recurrences treat together, whatever comes of it
STEP = 8  # widths of the feed-forward layers are multiples of it


def presets() -> list[str]:
    """Return the names that `from_preset` knows: each model at each scale."""
    return [f"{model}-{scale}" for model in MODELS for scale in SCALES]


def from_preset(name: str, **overrides: Any) -> TitansForCausalLM:
    """Make an untrained language model by name.

    Models of one scale have the same number of layers, the same width and, within 3 % (tiny, small) or within 5 % of
    the name (the others), the same number of parameters: what one mixer takes more than another, its feed-forward
    layers take less.

    Args:
        name: such as "titans-mac-tiny" or "gated-deltanet-340m"; see `presets`.
        **overrides: fields of `TitansConfig`, which replace the preset's. The width of the feed-forward layers is not
            chosen anew for them: a larger vocabulary adds the same to every model.

    Returns:
        The model, with random weights.

    Raises:
        TitansError: there is no preset of that name; it names the closest ones. Or an override is not a field, or
            cannot work.
    """
    return TitansForCausalLM(preset_config(name, **overrides))


def preset_config(name: str, **overrides: Any) -> TitansConfig:
    """Return the configuration of a preset; arguments and errors are those of `from_preset`."""
    model, _, scale_name = name.rpartition("-")
    if model not in MODELS or scale_name not in SCALES:
        close = difflib.get_close_matches(name.lower(), presets(), 3) or ["titans-mac-tiny"]
        raise TitansError(
            f'there is no preset "{name}": did you mean {" or ".join(close)}? '
            f"titans.presets() lists all {len(presets())}"
        )
    if unknown := sorted(overrides.keys() - TitansConfig.hints().keys() - set(vars(TitansConfig()))):
        raise TitansError(f"{unknown[0]} is not a field of TitansConfig: see its docstring")
    scale = SCALES[scale_name]
    fields = _fields(MODELS[model], scale)
    fields["intermediate_size"] = intermediate_size(scale.parameters, fields)
    try:
        return TitansConfig(**merge_fields(fields, overrides))
    except ValueError as error:
        raise TitansError(f'preset "{name}": {error}') from error


def intermediate_size(parameters: float, fields: dict[str, Any]) -> int:
    """Choose the width of the feed-forward layers that gives a model its number of parameters.

    Args:
        parameters: how many the model is to have.
        fields: the other fields of its `TitansConfig`.

    Returns:
        The closest multiple of `STEP`, and at least that.
    """
    config = TitansConfig(**fields, intermediate_size=STEP)
    per_unit: int = 3 * config.hidden_size * config.num_hidden_layers  # parameters for each unit of the width
    missing: float = parameters - count_parameters(config)
    return STEP * max(1, round(1 + missing / per_unit / STEP))


def count_parameters(config: TitansConfig) -> int:
    """Count the parameters of a model, of which only the blocks that differ are built, on the meta device."""
    kinds = len(config.blocks)
    one = TitansConfig(**config.to_dict() | {"num_hidden_layers": kinds})
    with torch.device("meta"):
        model = TitansForCausalLM(one)
    blocks: list[int] = [sum(p.numel() for p in block.parameters()) for block in model.model.layers]
    total: int = sum(p.numel() for p in model.parameters()) - sum(blocks)
    return total + sum(blocks[i % kinds] for i in range(config.num_hidden_layers))


def _fields(variant: str, scale: Scale) -> dict[str, Any]:
    """Return what a preset says of the configuration, but for the width of the feed-forward layers."""
    fields: dict[str, Any] = {
        "variant": variant,
        "vocab_size": scale.vocabulary,
        "hidden_size": scale.width,
        "num_hidden_layers": scale.layers,
        "num_attention_heads": scale.heads,
        "sliding_window": scale.window,
        "segment_length": scale.segment,
        "num_persistent_tokens": scale.persistent,
        "memory": {"chunk_size": CHUNK},
    }
    config = TitansConfig(**fields)
    with torch.device("meta"):
        mixers = [MIXERS[name](config) for block in config.blocks for name in block]
    if any(isinstance(layer, NeuralMemory) for mixer in mixers for layer in mixer.modules()):
        return fields
    return fields | {"memory": {"chunk_size": LINEAR_CHUNK}}
