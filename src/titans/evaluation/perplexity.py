"""Perplexity of a model on documents, by position, so that the use of a long context shows."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans.data.corpora import Document
from titans.data.reasons import refused_as
from titans.data.tokenizers import check_vocabulary, encode, encode_pieces
from titans.errors import TitansError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from titans.models.write_policy import WriteCounts, WritePolicy


@dataclasses.dataclass(frozen=True)
class PositionBucket:
    """The loss over the tokens whose number of preceding tokens lies in one power-of-two range.

    Args:
        first: fewest tokens before the predicted one.
        last: most tokens before it, that is 2 · first - 1.
        tokens: how many tokens were predicted there.
        loss: mean loss, nats per token.
    """

    first: int
    last: int
    tokens: int
    loss: float


@dataclasses.dataclass(frozen=True)
class PerplexityResult:
    """What `perplexity` measured.

    Args:
        documents: documents read.
        tokens: tokens predicted.
        bytes: UTF-8 bytes of the predicted text.
        loss: mean loss, nats per token.
        perplexity: e to the loss.
        bits_per_byte: total loss in bits over `bytes`; comparable between tokenizers.
        positions: the loss by the position in the document.
        writing: what the memories took in under a policy; None without one.
    """

    documents: int
    tokens: int
    bytes: int
    loss: float
    perplexity: float
    bits_per_byte: float
    positions: tuple[PositionBucket, ...]
    writing: WriteCounts | None = None

    def save(self, folder: Path) -> None:
        """Write `perplexity.json` and the plot `perplexity.png`.

        Args:
            folder: made if it does not exist.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "perplexity.json").write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        _plot(self, folder / "perplexity.png")


def perplexity(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[Document],
    *,
    piece_length: int = 2048,
    policy: WritePolicy | None = None,
    progress: Callable[[int], None] | None = None,
) -> PerplexityResult:
    """Stream documents through a model, the memory fresh at each document and carried within it.

    A document may be longer than any memory: it is read, tokenized and predicted in pieces. The first token
    is predicted from the bos token where the tokenizer has one, and is left out otherwise; eos is not
    predicted.

    Args:
        model: a causal language model of this package, on any device; used in evaluation mode.
        tokenizer: its tokenizer.
        documents: what to predict.
        piece_length: tokens of one forward pass; changes speed and memory, not the result. Default 2048.
        policy: which tokens the memories write. Default: all, uncounted.
        progress: called with the number of tokens predicted since the last call. Default: nothing.

    Returns:
        Loss, perplexity, bits per byte and the loss by position.

    Raises:
        TitansError: nothing to predict, the tokenizer is larger than the model's vocabulary, the policy is for
            another model, or the model fails, as with weights that hold NaN.
    """
    import torch

    from titans.models.write_policy import write_counts

    check_vocabulary(tokenizer, model.config.vocab_size)
    was_training = model.training
    model.eval()
    sums = _Sums()
    try:
        with torch.inference_mode():
            for document in documents:
                sums.documents += 1
                sums.bytes -= _unpredicted_bytes(tokenizer, document)
                state: Any = None if policy is None else policy.start(model.initial_state(1))
                for first, losses, reached in _losses(model, tokenizer, _counted(document, sums), piece_length, state):
                    sums.add(first, losses)
                    state = reached
                    if progress is not None:
                        progress(len(losses))
                if policy is not None:
                    sums.writing += write_counts(state)
    finally:
        model.train(was_training)
    return sums.result()


def _losses(
    model: Any, tokenizer: Any, blocks: Iterable[str], piece_length: int, state: Any
) -> Iterator[tuple[int, list[float], Any]]:
    """Yield, piece by piece, the number of tokens before the first target, the loss of each target, and the state."""
    import torch
    import torch.nn.functional as F

    position = 0
    # the last target of a piece is the first input of the next
    for piece in encode_pieces(tokenizer, blocks, piece_length + 1, overlap=1):
        ids = torch.tensor(piece, device=model.device)
        with refused_as("the model cannot read the text"):
            outputs = model(ids[None, :-1], cache=state, use_cache=True)
        state = outputs.cache
        yield position + 1, F.cross_entropy(outputs.logits[0].float(), ids[1:], reduction="none").tolist(), state
        position += len(piece) - 1


def _counted(document: Document, sums: _Sums) -> Iterator[str]:
    for block in document.blocks():
        sums.bytes += len(block.encode())
        yield block


def _unpredicted_bytes(tokenizer: Any, document: Document) -> int:
    """The bytes of the first token, which nothing predicts where there is no bos."""
    if tokenizer.bos_token_id is not None:
        return 0
    first = next(encode(tokenizer, document.blocks()), [])[:1]
    return len(tokenizer.decode(first).encode())


class _Sums:
    """Sums over the tokens so far, by power of two of the position."""

    def __init__(self) -> None:
        self.documents = 0
        self.bytes = 0
        self.writing: list[WriteCounts] = []  # of each document
        self.losses: list[float] = []
        self.counts: list[int] = []

    def add(self, first: int, losses: list[float]) -> None:
        """Add the losses of consecutive tokens, the first of which has `first` tokens before it."""
        start = 0
        while start < len(losses):
            bucket = (first + start).bit_length() - 1
            stop = min((2 << bucket) - first, len(losses))
            self.losses += [0.0] * (bucket + 1 - len(self.losses))
            self.counts += [0] * (bucket + 1 - len(self.counts))
            self.losses[bucket] += math.fsum(losses[start:stop])
            self.counts[bucket] += stop - start
            start = stop

    def result(self) -> PerplexityResult:
        from titans.models.write_policy import WriteCounts

        tokens, total = sum(self.counts), sum(self.losses)
        if not tokens:
            raise TitansError("the data is empty: there is no token to predict")
        if not math.isfinite(total):
            raise TitansError(f"the loss is {total}: the model's weights are damaged, or its training diverged")
        loss = total / tokens
        buckets = zip(self.losses, self.counts, strict=True)
        return PerplexityResult(
            documents=self.documents,
            tokens=tokens,
            bytes=self.bytes,
            loss=loss,
            perplexity=math.exp(min(loss, 700)),  # e^700 is about the largest float
            bits_per_byte=total / math.log(2) / self.bytes,
            positions=tuple(
                PositionBucket(1 << i, (2 << i) - 1, count, nats / count)
                for i, (nats, count) in enumerate(buckets)
                if count
            ),
            writing=WriteCounts.sum(self.writing) if self.writing else None,
        )


def _plot(result: PerplexityResult, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([bucket.first for bucket in result.positions], [b.loss for b in result.positions], marker="o")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens before the predicted one (from this many to twice as many)")
    axes.set_ylabel("loss, nats per token")
    axes.set_title(f"{result.bits_per_byte:.3f} bits per byte over {result.tokens:,} tokens")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
