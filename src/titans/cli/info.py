"""`titans info`."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Annotated, Any

import typer

CONTEXT = 4096  # tokens of a stream, over which the cost of a token is averaged


def info(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A model folder or hub id.")] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help="A preset instead, such as titans-mac-170m.")
    ] = None,
) -> None:
    """What a model is made of, what its state takes and what a token costs, without loading the weights.

    [bold]Example:[/] titans info runs/tiny-cpu
    """
    from titans.errors import TitansError
    from titans.models.flops import flops_per_token
    from titans.models.presets import preset_config
    from titans.training.pretrained import load_config

    if (model is None) == (preset is None):
        raise TitansError("give either a MODEL or --preset NAME")
    config = load_config(model) if model is not None else preset_config(preset or "")
    described = describe(config)
    growing = sum(described["growth"])
    limit = {"transformer": "without end", "rmt": f"up to the end of a segment of {config.segment_length:,}"}
    constant = "a stream, however long it is" if not growing else "at the start of a stream"
    rows = [
        ("variant", f"{config.variant}, {config.num_hidden_layers} layers of width {config.hidden_size}"),
        ("vocabulary", f"{config.vocab_size:,} tokens"),
        ("attention sees", _window(config)),
        ("memory chunk", f"{config.memory_chunk_size:,} tokens" if has_memory(config) else "no memory"),
        ("parameters", f"{sum(described['parameters'].values()):,}"),
        *((f"  {part}", f"{count:,}") for part, count in described["parameters"].items()),
        ("state", f"{sum(described['state']):,} bytes {constant}"),
        *((f"  layer {i}", f"{size:,} bytes") for i, size in enumerate(described["state"][: config.num_hidden_layers])),
        *(("  memory tokens", f"{size:,} bytes") for size in described["state"][config.num_hidden_layers :]),
        *([("  each token", f"{growing:,} bytes more, {limit[config.variant]}")] if growing else []),
        ("FLOPs a token", f"{flops_per_token(config, CONTEXT):,}, the mean of a stream of {CONTEXT:,} tokens, forward"),
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
        stream's state for each layer, and of RMT's memory tokens; `growth`: by how many bytes those of each layer grow
        with a token.
    """
    import torch

    from titans.models.modeling import TitansForCausalLM
    from titans.state import GrowingState

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
        "state": [
            *(sum(part.nbytes for part in layer) for layer in state.layers),
            *([] if state.segment is None else [state.segment.nbytes]),
        ],
        "growth": [
            sum(part.resized(1).nbytes - part.nbytes for part in layer if isinstance(part, GrowingState))
            for layer in state.layers
        ],
    }


def has_memory(config: Any) -> bool:
    """Tell whether a model has more than attention."""
    from titans.models.configuration import VARIANTS

    attention = {"attention", "attention_alone", "full_attention"}
    return any(mixer not in attention for block in VARIANTS[config.variant] for mixer in block)


def _kinds(model: Any) -> dict[str, str]:
    """What each named component is, by the prefix of its parameters' names."""
    from torch import nn

    from titans.layers.attention import Attention, SlidingWindowAttention
    from titans.layers.feed_forward import SwiGLU
    from titans.layers.full_attention import FullAttention
    from titans.layers.linear_recurrence import LinearRecurrence
    from titans.layers.mamba import Mamba
    from titans.layers.mamba2 import Mamba2
    from titans.layers.memory_as_context import MemoryAsContext
    from titans.layers.neural_memory import NeuralMemory
    from titans.models.segment_recurrence import SegmentRecurrence

    labels: dict[type, str] = {
        nn.Embedding: "embedding",
        NeuralMemory: "memory",
        Attention: "attention",
        SlidingWindowAttention: "attention",
        FullAttention: "attention",
        SegmentRecurrence: "memory",
        SwiGLU: "feed-forward",
    }
    kinds = {f"{name}.": labels[type(module)] for name, module in model.named_modules() if type(module) in labels}
    for name, module in model.named_modules():
        if isinstance(module, LinearRecurrence | Mamba | Mamba2):
            kinds[f"{name}."] = "memory"
        if isinstance(module, MemoryAsContext):  # how it asks the memory for the context
            kinds |= {f"{name}.{part}": "memory" for part in ("retrieval", "retrieval_norm.", "retrieval_proj.")}
    return kinds | {"lm_head.": "output head"}


def _window(config: Any) -> str:
    from titans.models.configuration import VARIANTS

    mixers = {mixer for block in VARIANTS[config.variant] for mixer in block}
    match config.variant:
        case "transformer":
            return "everything that was read"
        case "rmt":
            return f"its segment of {config.segment_length:,} tokens, and {config.num_memory_tokens} memory tokens"
        case "mac":
            seen = f"its segment of {config.segment_length:,} tokens"
        case _ if mixers & {"attention", "attention_alone", "memory_as_gate"}:
            seen = f"{config.sliding_window:,} tokens"
        case _:
            return "nothing: there is no attention"
    return seen if "attention_alone" in mixers else f"{seen}, and {config.num_persistent_tokens} persistent ones"
