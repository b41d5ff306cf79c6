"""The loss of a language model: over pieces of a sequence, with the state carried and a price on writing."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from titans.data.packing import IGNORED
from titans.errors import TitansError
from titans.layers.neural_memory import NeuralMemory
from titans.models.modeling import TitansForCausalLM


class Terms(NamedTuple):
    """What one forward pass adds to the loss of an optimizer step.

    Args:
        loss: its part of the mean cross-entropy per target, nats.
        price: its part of the price of writing, nats.
        output: what the model put out.
    """

    loss: Tensor
    price: Tensor
    output: Any


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a language model is trained to make small.

    Args:
        write_cost: price of writing, in nats for write gates that stand equally open (see `WriteGates`); asked from the
            middle of the training on, in full after a tenth more. Default 0.
        piece_length: tokens after which a model of this package carries its state on and gradients end. Default: none,
            the whole sequence.
        label_smoothing: share of each target that is spread over the vocabulary. Default 0.

    Raises:
        TitansError: one of them is out of range.
    """

    write_cost: float = 0.0
    piece_length: int | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.write_cost < math.inf:
            raise TitansError(f"write_cost is {self.write_cost}, expected 0 or more")
        if self.piece_length is not None and self.piece_length < 1:
            raise TitansError(f"piece_length is {self.piece_length}, expected at least 1")

    def price(self, done: float) -> float:
        """Return the price of writing when a share `done` of the training is done, 0 to 1."""
        return self.write_cost * min(max(done - 0.5, 0.0) / 0.1, 1.0)

    def terms(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        labels: Tensor,
        *,
        targets: Tensor | int,
        tokens: Tensor | int,
        done: float,
    ) -> Terms:
        """Read one piece.

        Args:
            model: a causal language model, wrapped or not.
            inputs: what it is called with, `input_ids` `[B, T]` among it.
            labels: the token after each, `[B, T]`; -100 where none is asked for.
            targets: of the whole optimizer step.
            tokens: of the whole optimizer step; a piece pays the price by its share of them.
            done: share of the training done, this step included.

        Returns:
            Its part of the loss. Sums over the pieces of a step are the step's loss.
        """
        price = self.price(done)
        with WriteGates(model) if price else contextlib.nullcontext() as gates:
            logits, output = logits_at(model, labels != IGNORED, **inputs)
        asked = labels[labels != IGNORED]
        loss = F.cross_entropy(logits, asked, reduction="sum", label_smoothing=self.label_smoothing) / targets
        if gates is None:
            return Terms(loss, torch.zeros_like(loss), output)
        mask = inputs.get("attention_mask")
        share = (labels.numel() if mask is None else mask.sum()) / tokens
        return Terms(loss, price * share * gates.spread().to(loss.device), output)

    def parts(self, model: Any, ids: Tensor, labels: Tensor, done: float) -> Iterator[Terms]:
        """Read whole sequences, piece by piece.

        Args:
            model: a causal language model; one of another package reads each sequence as a whole.
            ids: tokens `[B, T]`, on any device.
            labels: as of `terms`.
            done: as of `terms`.

        Yields:
            The terms of each piece; their gradients end at its start.
        """
        device = next(model.parameters()).device
        batch = {"input_ids": ids.to(device), "labels": labels.to(device)}
        pieces = split_pieces(batch, self.piece_length if is_titans(model) else None)
        targets, tokens = (batch["labels"] != IGNORED).sum(), ids.numel()
        carried: dict[str, Any] = {}
        for piece in pieces:
            inputs = {"input_ids": piece["input_ids"], **carried}
            if len(pieces) > 1:
                inputs["use_cache"] = True
            terms = self.terms(model, inputs, piece["labels"], targets=targets, tokens=tokens, done=done)
            yield terms
            if len(pieces) > 1:
                carried = {"cache": terms.output.cache.detach()}


def split_pieces(batch: Mapping[str, Any], piece_length: int | None) -> list[dict[str, Any]]:
    """Cut a batch into pieces.

    Args:
        batch: tensors `[B, T]`, which are cut, and anything else, which every piece gets.
        piece_length: tokens of a piece; None for one.

    Returns:
        The pieces, in order.
    """
    length = batch["input_ids"].shape[1]
    if piece_length is None or piece_length >= length:
        return [dict(batch)]
    return [
        {
            key: value[:, start : start + piece_length] if isinstance(value, Tensor) and value.dim() == 2 else value
            for key, value in batch.items()
        }
        for start in range(0, length, piece_length)
    ]


def resumed(batch: Mapping[str, Any], carried: Any, initial_state: Callable[[int], Any]) -> dict[str, Any]:
    """Replace a batch's marks by the state that the model starts from.

    Args:
        batch: as a `PieceDataset` gives it: `streamed`, whether it goes on with streams, and `reset` `[B]`, the rows
            that start anew; the rest is for the model.
        carried: the state that the last streamed batch left; None where there was none.
        initial_state: makes the state before the first token of so many streams.

    Returns:
        What to call the model with, labels left out.
    """
    inputs = {key: value for key, value in batch.items() if key not in ("reset", "streamed", "labels")}
    inputs["use_cache"] = batch["streamed"]
    reset: Tensor = batch["reset"]
    if batch["streamed"] and carried is not None and not reset.all():
        inputs["cache"] = initial_state(len(reset)).where(reset, carried) if reset.any() else carried
    return inputs


def is_titans(model: Any) -> bool:
    """Tell whether a model, wrapped or not, is a causal language model of this package."""
    return isinstance(extract_model_from_parallel(model), TitansForCausalLM)


def logits_at(model: Any, asked: Tensor, **inputs: Any) -> tuple[Tensor, Any]:
    """Return a model's logits where something is asked, and compute no others where the model allows that.

    Args:
        model: a causal language model.
        asked: where, `[B, T]`, bool.
        **inputs: passed to the model.

    Returns:
        Logits `[asked, vocab_size]`, float32, and what the model put out.
    """
    if is_titans(model):
        output = model(**inputs, logits_to_keep=asked)
        return output.logits.float(), output
    output = model(**inputs)
    return output.logits[asked].float(), output


class WriteGates:
    """Within its `with` block, collects the write gates of every forward pass of a model.

    A gate is the sigmoid in theta (docs/guide/memory.md): 1 where a token writes with the largest step, near 0 where it
    hardly writes. Added to a loss, their spread is a price for writing: a token that no answer needs is then not
    written. Their mean would not do: what a memory answers is normalised, so that all gates could shrink together.

    Args:
        model: any; one without memory layers has no gates.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [layer for layer in model.modules() if isinstance(layer, NeuralMemory)]
        self._seen: defaultdict[NeuralMemory, list[Tensor]] = defaultdict(list)
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        self._handles = [layer.gates.register_forward_hook(partial(self._see, layer)) for layer in self._layers]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _see(self, layer: NeuralMemory, module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        self._seen[layer].append(logits)  # computed with later: what runs in a layer is repeated by checkpointing

    def spread(self) -> Tensor:
        """Return how evenly tokens were written.

        That is the mean of a head's gates over their root mean square (Hoyer, 2004), averaged over heads and layers:
        1 where all stand equally open, however far, and `sqrt(s)` where a share s does and the others are closed.
        Persistent tokens count like others, and so does padding. Differentiable.

        Returns:
            A number between 0 and 1; 0 where nothing was seen.
        """
        spreads = []
        for layer, seen in self._seen.items():
            gates = torch.cat([x[..., : layer.num_heads].float().sigmoid().flatten(0, -2) for x in seen])
            gates = gates / gates.detach().amax(0).clamp(min=torch.finfo(gates.dtype).tiny)  # else squares are 0
            spreads.append(gates.mean(0) / gates.square().mean(0).sqrt())
        return torch.cat(spreads).mean() if spreads else torch.zeros(())
