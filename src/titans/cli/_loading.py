"""What a command loads: a model and its tokenizer, a write policy, a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from titans.errors import TitansError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from titans.models.write_policy import WriteCounts

AnyModel = Annotated[
    str, typer.Argument(metavar="MODEL", help="A folder or hub id: Titans or any Hugging Face causal model.")
]
Write = Annotated[
    str | None,
    typer.Option(
        "--write",
        metavar="always|gated|never",
        help="What the memory takes in: every token, what surprises (after titans calibrate), or nothing.",
        show_default="what titans calibrate found best, else always",
    ),
]


def silence_loading() -> None:
    """Show no progress bar for reading and writing weights."""
    from transformers.utils import logging

    disable: Any = logging.disable_progress_bar  # untyped
    disable()


def load_for_inference(name: str) -> tuple[Any, Any]:
    """Load a model, by folder or hub id, on the best device of this machine, and the tokenizer that fits it."""
    from titans.data.hub import local_or_hub
    from titans.data.tokenizers import check_vocabulary, load_tokenizer
    from titans.training.pretrained import find_device, load_model

    silence_loading()
    with local_or_hub(name):  # which is asked once whether it answers
        model: Any = load_model(name)
        tokenizer = load_tokenizer(name)
    check_vocabulary(tokenizer, model.config.vocab_size)
    return model.to(find_device()), tokenizer


def text_or_file(text: str | None, file: Path | None, name: str) -> Iterable[str]:
    """Return a command's text in parts: `text`, which the user calls `name`, or a file, read as it is asked for."""
    from titans.io.text import text_blocks

    if (text is None) == (file is None):
        raise TitansError(f"give the text either as {name} or as --file")
    if file is not None:
        return text_blocks(file)
    if any("\ud800" <= character <= "\udfff" for character in text or ""):  # how Python marks bytes it cannot decode
        raise TitansError("the text is not UTF-8: check the encoding of the terminal")
    return [text or ""]


def shares(counts: WriteCounts) -> str:
    """Say in words which share of the tokens was written, skipped and dropped."""
    of = {"written": counts.written, "skipped": counts.skipped, "dropped": counts.dropped}
    return ", ".join(f"{what} {count / counts.total:.1%}" for what, count in of.items())


def best_device() -> str:
    """Return where to train: the accelerator of this machine, or the CPU."""
    from titans.training.pretrained import find_device

    return find_device().type
