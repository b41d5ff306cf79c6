"""`titans info`."""

from __future__ import annotations

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
    limit = f"up to the end of a segment of {config.segment_length:,}" if config.variant == "rmt" else "without end"
    constant = "a stream, however long it is" if not growing else "at the start of a stream"
    rows = [
        ("variant", f"{config.kind}, {config.num_hidden_layers} layers of width {config.hidden_size}"),
        ("vocabulary", f"{config.vocab_size:,} tokens"),
        ("attention sees", "; ".join(described["views"]) or "nothing: there is no attention"),
        ("memory chunk", f"{config.memory.chunk_size:,} tokens" if described["memory"] else "no memory"),
        ("parameters", f"{sum(described['parameters'].values()):,}"),
        *((f"  {part}", f"{count:,}") for part, count in described["parameters"].items()),
        ("state", f"{sum(described['state']):,} bytes {constant}"),
        *((f"  layer {i}", f"{size:,} bytes") for i, size in enumerate(described["state"][: config.num_hidden_layers])),
        *(("  memory tokens", f"{size:,} bytes") for size in described["state"][config.num_hidden_layers :]),
        *([("  each token", f"{growing:,} bytes more, {limit}")] if growing else []),
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
        with a token; `views`: what its attention sees, in words; `memory`: whether there is more than attention.
    """
    import torch

    from titans.models.modeling import TitansForCausalLM
    from titans.ops.state import GrowingState

    with torch.device("meta"):
        model = TitansForCausalLM(config)
        state = model.model.empty_state(1)
    parameters: Counter[str] = Counter()
    kinds = _components(model)
    for name, parameter in model.named_parameters():
        owner = max((prefix for prefix in kinds if name.startswith(prefix)), key=len, default="")
        parameters[kinds.get(owner, "norms and gates")] += parameter.numel()
    outer = [model.model.recurrence or mixer for block in model.model.layers for mixer in block.mixers]
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
        "views": list(dict.fromkeys(view for module in outer if (view := getattr(module, "view", None)))),
        "memory": any(mixer.component == "memory" for block in model.model.layers for mixer in block.mixers),
    }


def _components(model: Any) -> dict[str, str]:
    """What each named component is, by the prefix of its parameters' names."""
    found = {f"{name}.": module.component for name, module in model.named_modules() if hasattr(module, "component")}
    return {"model.embed_tokens.": "embedding", "lm_head.": "output head"} | found
