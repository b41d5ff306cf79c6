"""Perplexity of a model on documents, by position, so that the use of a long context shows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titans import plots
from titans.data.corpora import Document
from titans.data.tokenizers import check_vocabulary, encode, encode_pieces
from titans.error_text import refused_as
from titans.errors import TitansError
from titans.evaluation.inference import evaluating
from titans.evaluation.results import save_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
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
        protocol: what the model read before each token, in one line.
    """

    documents: int
    tokens: int
    bytes: int
    loss: float
    perplexity: float
    bits_per_byte: float
    positions: tuple[PositionBucket, ...]
    writing: WriteCounts | None = None
    protocol: str = ""

    def save(self, folder: Path) -> None:
        """Write `perplexity.json` and the plot `perplexity.png`.

        Args:
            folder: made if it does not exist.
        """
        save_result(folder, "perplexity", dataclasses.asdict(self), _plot(self))


def perplexity(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[Document],
    *,
    piece_length: int = 2048,
    window: int | None = None,
    policy: WritePolicy | None = None,
    progress: Callable[[int], None] | None = None,
) -> PerplexityResult:
    """Stream documents through a model, the memory fresh at each document and carried within it.

    A document may be longer than any memory: it is read, tokenized and predicted in pieces. The first token
    is predicted from the bos token where the tokenizer has one, and is left out otherwise; eos is not
    predicted. Models of Hugging Face read in windows, see `DocumentWindows`.

    Args:
        model: a causal language model of this package or of Hugging Face, on any device; used in evaluation mode.
        tokenizer: its tokenizer.
        documents: what to predict.
        piece_length: tokens of one forward pass; changes speed and memory, not the result. Default 2048.
        window: tokens that a model of Hugging Face reads at a time, at least 2. Default: all it has positions for.
        policy: which tokens the memories of a Titans model write. Default: all, uncounted.
        progress: called with the number of tokens predicted since the last call. Default: nothing.

    Returns:
        Loss, perplexity, bits per byte and the loss by position.

    Raises:
        TitansError: nothing to predict, the tokenizer is larger than the model's vocabulary, the policy or the window
            is for another model or longer than its positions, or the model fails, as with weights that hold NaN.
    """
    from titans.models.configuration import TitansConfig

    check_vocabulary(tokenizer, model.config.get_text_config().vocab_size)
    with evaluating(model):
        if isinstance(model.config, TitansConfig):
            if window is not None:
                raise TitansError("a Titans model reads each document from its start: windows are for other models")
            text, how = _Text(tokenizer, documents, piece_length + 1, 1), "each document read from its start"
            losses = predict(model, text.pieces(), policy, progress)
        else:
            losses, text, how = _in_windows(model, tokenizer, documents, (piece_length, window), policy, progress)
    return PerplexityResult(
        documents=text.documents,
        tokens=losses.tokens,
        bytes=text.bytes,
        loss=losses.mean,
        perplexity=losses.perplexity,
        bits_per_byte=losses.total / math.log(2) / text.bytes,
        positions=losses.positions(),
        writing=losses.writing,
        protocol=f"protocol: {how}, {_start(tokenizer)}",
    )


def _in_windows(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    documents: Iterable[Document],
    sizes: tuple[int, int | None],
    policy: WritePolicy | None,
    progress: Callable[[int], None] | None,
) -> tuple[Losses, _Text, str]:
    """Predict documents with a model of Hugging Face: the losses, what was read, and how."""
    from titans.evaluation.windows import DocumentWindows

    if policy is not None and policy.write != "always":
        raise TitansError(f"write policies are for Titans models, and this is a {model.config.model_type} model")
    windows, losses = DocumentWindows(model, *sizes), Losses()
    text = _Text(tokenizer, documents, windows.length, windows.overlap)
    for document in text.pieces():
        for first, found in windows.losses(document):
            losses.add(first, found)
            if progress is not None:
                progress(len(found))
    losses.check()
    return losses, text, windows.protocol


def _start(tokenizer: PreTrainedTokenizerBase) -> str:
    if tokenizer.bos_token_id is None:
        return "its first token left out, as the tokenizer has no bos token to predict it from"
    return f"its first token predicted from {tokenizer.bos_token}"


def predict(
    model: Any,
    documents: Iterable[Iterable[Sequence[int]]],
    policy: WritePolicy | None,
    progress: Callable[[int], None] | None,
) -> Losses:
    """Stream documents of token ids through a model, the memory fresh at each.

    Args:
        model: a causal language model of this package, in evaluation mode.
        documents: the pieces of each; the last id of a piece is the first of the next.
        policy: which tokens the memories write. None: all, uncounted.
        progress: called with the number of tokens predicted since the last call.

    Returns:
        The losses.

    Raises:
        TitansError: nothing to predict, the policy is for another model, or the model fails.
    """
    import torch
    import torch.nn.functional as F

    from titans.models.write_policy import WriteCounts, write_counts

    losses, counts = Losses(), []
    with torch.inference_mode():
        for pieces in documents:
            position = 1
            state: Any = None if policy is None else policy.start(model.initial_state(1))
            for piece in pieces:
                ids = torch.tensor(piece, device=model.device)
                with refused_as("the model cannot read the text"):
                    outputs = model(ids[None, :-1], cache=state, use_cache=True)
                state = outputs.cache
                losses.add(position, F.cross_entropy(outputs.logits[0].float(), ids[1:], reduction="none").tolist())
                position += len(piece) - 1
                if progress is not None:
                    progress(len(piece) - 1)
            if policy is not None:
                counts += write_counts(state)
    losses.writing = WriteCounts.sum(counts) if counts else None
    losses.check()
    return losses


class _Text:
    """Documents as token ids, counted as they are read."""

    def __init__(self, tokenizer: Any, documents: Iterable[Document], length: int, overlap: int) -> None:
        self.tokenizer, self.length, self.overlap = tokenizer, length, overlap
        self.source, self.documents, self.bytes = documents, 0, 0

    def pieces(self) -> Iterator[Iterator[list[int]]]:
        """Yield the pieces of each document."""
        for document in self.source:
            self.documents += 1
            self.bytes -= _unpredicted_bytes(self.tokenizer, document)
            yield encode_pieces(self.tokenizer, self._counted(document), self.length, self.overlap)

    def _counted(self, document: Document) -> Iterator[str]:
        for block in document.blocks():
            self.bytes += len(block.encode())
            yield block


def _unpredicted_bytes(tokenizer: Any, document: Document) -> int:
    """The bytes of the first token, which nothing predicts where there is no bos."""
    if tokenizer.bos_token_id is not None:
        return 0
    first = next(encode(tokenizer, document.blocks()), [])[:1]
    return len(tokenizer.decode(first).encode())


class Losses:
    """Sums of the losses of single tokens, by power of two of the position."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.counts: list[int] = []
        self.writing: WriteCounts | None = None

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

    def check(self) -> None:
        """Refuse losses from which no mean can be had."""
        if not self.tokens:
            raise TitansError("the data is empty: there is no token to predict")
        if not math.isfinite(self.total):
            raise TitansError(f"the loss is {self.total}: the model's weights are damaged, or its training diverged")

    @property
    def tokens(self) -> int:
        """How many tokens were predicted."""
        return sum(self.counts)

    @property
    def total(self) -> float:
        """The loss of all tokens, in nats."""
        return sum(self.losses)

    @property
    def mean(self) -> float:
        """Nats per token."""
        return self.total / self.tokens

    @property
    def perplexity(self) -> float:
        """E to the mean loss."""
        return math.exp(min(self.mean, 700))  # e^700 is about the largest float

    def positions(self) -> tuple[PositionBucket, ...]:
        """The loss by position."""
        buckets = enumerate(zip(self.losses, self.counts, strict=True))
        return tuple(PositionBucket(1 << i, (2 << i) - 1, count, nats / count) for i, (nats, count) in buckets if count)


def _plot(result: PerplexityResult) -> Figure:
    drawn, (axes,) = plots.figure(size=(7, 4))
    plots.line(axes, [bucket.first for bucket in result.positions], [b.loss for b in result.positions])
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel="tokens before the predicted one (from this many to twice as many)",
        ylabel="loss, nats per token",
        title=f"{result.bits_per_byte:.3f} bits per byte over {result.tokens:,} tokens",
    )
    return drawn
