"""Load a trained model by folder or hub id, with one clear sentence where that fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

from titans.data.hub import local_or_hub
from titans.error_text import first_line
from titans.errors import TitansError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from titans.models.write_policy import WritePolicy


def load_config(name: str) -> Any:
    """Load the configuration of a Titans model.

    Args:
        name: a model folder or a hub id.

    Returns:
        Its `TitansConfig`.

    Raises:
        TitansError: there is none, or it is that of another kind of model.
    """
    from titans.models.configuration import TitansConfig

    config = load_any_config(name)
    if not isinstance(config, TitansConfig):
        raise TitansError(f'"{name}" is a {config.model_type} model, expected a Titans model')
    return config


def load_any_config(name: str) -> Any:
    """Load the configuration of a model of any kind.

    Args:
        name: a model folder or a hub id.

    Returns:
        The configuration.

    Raises:
        TitansError: there is none.
    """
    from transformers import AutoConfig

    path = Path(name)
    if path.exists():
        if not (path / "config.json").is_file():
            raise TitansError(f"{name} holds no model: expected a folder with a config.json, as titans train leaves it")
    elif not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise TitansError(f'there is no model folder "{name}": expected a path or a hub id like owner/name')
    try:
        with local_or_hub(name):
            return AutoConfig.from_pretrained(name)
    except (OSError, ValueError, TypeError, StrictDataclassError) as error:
        raise TitansError(f'cannot load the model "{name}": {first_line(error)}') from error


def load_model(name: str) -> PreTrainedModel:
    """Load a model, from safetensors only.

    Args:
        name: a model folder or a hub id.

    Returns:
        The model, on the CPU, for inference.

    Raises:
        TitansError: there is none, it is no Titans model, or its weights are missing, damaged or those of
            another model.
    """
    from titans.models.modeling import TitansForCausalLM

    return _load(name, TitansForCausalLM, load_config(name))


def load_causal_model(name: str) -> PreTrainedModel:
    """Load a causal language model of any kind that transformers knows, from safetensors only and without remote code.

    Args:
        name: a model folder or a hub id.

    Returns:
        The model, on the CPU, for inference.

    Raises:
        TitansError: there is none, it is no causal language model, or its weights are missing, damaged or those of
            another model.
    """
    from transformers import AutoModelForCausalLM

    # Checkpoints of older versions of transformers may hold buffers that a model no longer has.
    return _load(name, AutoModelForCausalLM, load_any_config(name), allow_unexpected=True)


def load_write_policy(name: str, write: str | None) -> WritePolicy:
    """Make the policy that `--write` asks for.

    Args:
        name: a model folder or a hub id.
        write: "always", "gated" or "never"; None for what calibration found best, "always" where there was none.

    Returns:
        The policy; the model folder's where it is gated.

    Raises:
        TitansError: there is no such choice, no such model, or the folder holds no policy or a damaged one.
    """
    from titans.models.write_policy import WritePolicy, load_best

    best, policy = load_best(name)
    write = best if write is None else write
    if write != "gated":
        return WritePolicy(write)
    if policy is None:
        load_config(name)  # where there is no model, that is what the user has to know
        raise TitansError(f"{name} holds no write policy: make one with titans calibrate {name} DATA")
    return policy


def find_device(name: str | None = None) -> torch.device:
    """Find where a model is to work.

    Args:
        name: as "cpu" or "cuda:1". Default: the accelerator of this machine, or its CPU.

    Returns:
        The device.

    Raises:
        TitansError: there is no kind of device of that name.
    """
    import torch

    if name is None:
        best = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return best or torch.device("cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise TitansError(f'there is no device "{name}": expected one such as cpu, cuda or cuda:1') from error


def _load(name: str, kind: Any, config: Any, *, allow_unexpected: bool = False) -> PreTrainedModel:
    """Load exactly the weights that a configuration describes: transformers only warns, and would leave some random."""
    from safetensors import SafetensorError
    from transformers.utils import logging

    verbosity: Any = logging.get_verbosity()
    try:
        logging.set_verbosity_error()  # what does not fit is said below, in one line
        with local_or_hub(name):
            model, found = kind.from_pretrained(name, config=config, use_safetensors=True, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise TitansError(f'cannot load the weights of the model "{name}": {first_line(error)}') from error
    finally:
        logging.set_verbosity(verbosity)
    problems = {"missing_keys": "lack"} | ({} if allow_unexpected else {"unexpected_keys": "hold an unknown"})
    for kind_of_keys, problem in problems.items():
        keys = sorted(key for key in found[kind_of_keys] if key not in model.all_tied_weights_keys)
        if keys:
            raise TitansError(
                f'the weights of the model "{name}" {problem} {keys[0]} ({len(keys)} such): expected exactly those '
                "that its config.json describes"
            )
    loaded: PreTrainedModel = model.eval()
    return loaded
