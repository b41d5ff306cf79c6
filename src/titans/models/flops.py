"""How much a model computes for a token, counted from its configuration."""

from __future__ import annotations

import torch
from torch import nn

from titans.models.configuration import TitansConfig
from titans.models.modeling import TitansForCausalLM


def flops_per_token(config: TitansConfig, context: int) -> int:
    """Count the floating-point operations of reading one token, the mean over a stream of `context` tokens.

    A multiplication and an addition are two. Counted are

    - 2 for each weight of a linear layer, the output head included, the embedding's look-up not;
    - what layers say of themselves by a method `flops(context)`, such as `titans.NeuralMemory.flops`.

    That is what the recurrences of the papers take. Not counted are norms, gates and other things that work on single
    numbers, and what computing a chunk at once takes beyond the recurrence. Training takes about three times as much.

    Args:
        config: the configuration.
        context: tokens of the stream; with full attention more of them cost more each.

    Returns:
        The operations, forward.
    """
    with torch.device("meta"):
        model = TitansForCausalLM(config)
    head = 2 * model.lm_head.weight.numel()
    read, share = context, 1.0
    if model.model.recurrence is not None:  # the blocks read the memory tokens, too, and no further than a segment
        read = config.segment_length + 2 * config.num_memory_tokens
        share = read / config.segment_length
    blocks = 0.0
    for module in model.model.layers.modules():
        blocks += 2 * module.weight.numel() if isinstance(module, nn.Linear) else 0
        blocks += module.flops(read) if hasattr(module, "flops") else 0
    return round(share * blocks) + int(head)
