"""The models of a comparison: made from a variant, a preset or any Hugging Face configuration, and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM

from titans.error_text import first_line
from titans.errors import TitansError
from titans.io.recipe import check_section
from titans.models.configuration import TitansConfig
from titans.models.modeling import TitansForCausalLM
from titans.models.presets import from_preset

KINDS = ("variant", "preset", "model_type")


def make_model(fields: Mapping[str, Any], vocab_size: int, seed: int = 0) -> Any:
    """Make an untrained causal language model.

    Args:
        fields: `TitansConfig` fields; or `preset`, the name of a Titans preset, and fields that replace its; or
            `model_type`, as "llama", and fields of that Hugging Face configuration.
        vocab_size: tokens, where the fields say nothing else.
        seed: of the initialisation; the random numbers of others are left alone. Default 0.

    Returns:
        The model, on the CPU.

    Raises:
        TitansError: the fields are unknown, of the wrong type, or contradict each other.
    """
    given = {"vocab_size": vocab_size} | dict(fields)
    if sum(kind in given for kind in KINDS) > 1:
        raise TitansError(f"a model is given by one of {', '.join(KINDS)}, not by several")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            if "preset" in given:
                return from_preset(given.pop("preset"), **given)
            return _hugging_face(given) if "model_type" in given else _titans(given)
        except TitansError:
            raise
        except (ValueError, TypeError, KeyError, StrictDataclassError) as error:
            raise TitansError(f"the model does not work: {first_line(error)}") from error


def count(fields: Mapping[str, Any], vocab_size: int) -> int:
    """Count the parameters of a model but for its embeddings: the input's and the output head, shared or not.

    Args:
        fields: see `make_model`.
        vocab_size: tokens.

    Returns:
        The parameters of everything between the two.
    """
    with torch.device("meta"):
        model = make_model(fields, vocab_size)
    outside = {id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings()) if module}
    return sum(p.numel() for p in model.parameters() if id(p) not in outside)


def matched(fields: Mapping[str, Any], vocab_size: int, parameters: int) -> dict[str, Any]:
    """Choose the width of the feed-forward layers that brings a Titans model nearest to a number of parameters.

    Args:
        fields: see `make_model`.
        vocab_size: tokens.
        parameters: how many are wanted, embeddings not counted.

    Returns:
        The fields, with `intermediate_size` where they say nothing of it.

    Raises:
        TitansError: the model is larger even with feed-forward layers of width 1.
    """
    if "intermediate_size" in fields:
        return dict(fields)
    one, two = (count({**fields, "intermediate_size": width}, vocab_size) for width in (1, 2))
    if one > parameters:
        raise TitansError(
            f"{one:,} parameters remain without feed-forward layers, but {parameters:,} are asked for: make the model "
            "smaller, or parameters larger"
        )
    return {**fields, "intermediate_size": 1 + round((parameters - one) / (two - one))}


def _titans(fields: dict[str, Any]) -> Any:
    check_section(fields, TitansConfig.hints(), "model.")
    return TitansForCausalLM(TitansConfig(**fields))


def _hugging_face(fields: dict[str, Any]) -> Any:
    config: Any = AutoConfig.for_model(fields.pop("model_type"))
    unknown = [name for name in fields if not hasattr(config, name)]
    if unknown:
        raise TitansError(f'a {config.model_type} configuration has no "{unknown[0]}"')
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # those of a trained model's vocabulary
    return AutoModelForCausalLM.from_config(type(config)(**(special | fields)))
