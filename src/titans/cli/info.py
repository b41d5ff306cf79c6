"""`titans info`."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Annotated, Any

import typer


def info(model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder or hub id.")]) -> None:
    """What a model is made of, and how much memory its state takes, without loading the weights.

    [bold]Example:[/] titans info runs/tiny-cpu
    """
    from titans.training.pretrained import load_config

    config = load_config(model)
    described = describe(config)
    rows = [
        ("variant", f"{config.variant}, {config.num_hidden_layers} layers of width {config.hidden_size}"),
        ("vocabulary", f"{config.vocab_size:,} tokens"),
        ("attention sees", _window(config)),
        ("memory chunk", f"{config.memory_chunk_size:,} tokens" if config.variant != "swa" else "no memory"),
        ("parameters", f"{sum(described['parameters'].values()):,}"),
        *((f"  {part}", f"{count:,}") for part, count in described["parameters"].items()),
        ("state", f"{sum(described['state']):,} bytes a stream, however long it is"),
        *((f"  layer {i}", f"{size:,} bytes") for i, size in enumerate(described["state"])),
    ]
    width = max(len(name) for name, _ in rows) + 2
    for name, value in rows:
        typer.echo(f"{name:<{width}}{value}")


def describe(config: Any) -> dict[str, Any]:
    """Count a model's parameters and the bytes of its state from their shapes alone.

    Args:
        config: a `TitansConfig`.

    Returns:
        `parameters`: how many each kind of component has, a shared tensor counted once; `state`: bytes of one
        stream's state for each layer.
    """
    import torch

    from titans.models.modeling import TitansForCausalLM

    # Persistent tokens do not change the state's shapes, and reading them takes more than the meta device can do.
    without_persistent = copy.deepcopy(config)
    without_persistent.num_persistent_tokens = 0
    with torch.device("meta"):
        model = TitansForCausalLM(config)
        state = TitansForCausalLM(without_persistent).initial_state(1)
    parameters: Counter[str] = Counter()
    kinds = _kinds(model)
    for name, parameter in model.named_parameters():
        owner = max((prefix for prefix in kinds if name.startswith(prefix)), key=len, default="")
        parameters[kinds.get(owner, "norms and gates")] += parameter.numel()
    return {
        "parameters": dict(parameters),
        "state": [sum(part.nbytes for part in layer) for layer in state.layers],
    }


def _kinds(model: Any) -> dict[str, str]:
    """What each named component is, by the prefix of its parameters' names."""
    from torch import nn

    from titans.layers.attention import Attention, SlidingWindowAttention
    from titans.layers.feed_forward import SwiGLU
    from titans.layers.linear_recurrence import LinearRecurrence
    from titans.layers.mamba import Mamba
    from titans.layers.mamba2 import Mamba2
    from titans.layers.memory_as_context import MemoryAsContext
    from titans.layers.neural_memory import NeuralMemory

    labels: dict[type, str] = {
        nn.Embedding: "embedding",
        NeuralMemory: "memory",
        Attention: "attention",
        SlidingWindowAttention: "attention",
        SwiGLU: "feed-forward",
    }
    kinds = {f"{name}.": labels[type(module)] for name, module in model.named_modules() if type(module) in labels}
    for name, module in model.named_modules():
        if isinstance(module, LinearRecurrence | Mamba | Mamba2):
            kinds[f"{name}."] = "memory"
        if isinstance(module, MemoryAsContext):  # how it asks the memory for the context
            kinds |= {f"{name}.{part}": "memory" for part in ("query.", "retrieval", "retrieval_norm.")}
    return kinds | {"lm_head.": "output head"}


def _window(config: Any) -> str:
    from titans.models.configuration import VARIANTS

    match config.variant:
        case variant if not {"attention", "memory_as_gate", "memory_as_context"} & {*VARIANTS[variant]}:
            return "nothing: there is no attention"
        case "mac":
            seen = f"its segment of {config.segment_length:,} tokens"
        case _:
            seen = f"{config.sliding_window:,} tokens"
    return f"{seen}, and {config.num_persistent_tokens} persistent ones"
