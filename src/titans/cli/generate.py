"""`titans generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titans.cli._loading import Write, load_for_inference, text_or_file

_LARGEST_SEED = (1 << 63) - 1


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder or hub id.")],
    prompt: Annotated[str | None, typer.Option(help="The text to go on from.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the text to go on from, of any length.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Stop after this many tokens.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token every time.")] = 0.8,
    top_p: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Sample from the likeliest tokens of this total probability."),
    ] = 0.95,
    seed: Annotated[
        int | None, typer.Option(min=0, max=_LARGEST_SEED, help="Makes sampling repeatable.", show_default=False)
    ] = None,
    write: Write = None,
) -> None:
    """Go on from a prompt, printing the text as it comes.

    The prompt is streamed through the memory in pieces: its length is bounded by patience, not by memory.

    [bold]Example:[/] titans generate runs/tiny-cpu --file book.txt --max-new-tokens 500 --temperature 0.7
    """
    from titans.generation.stream import generate_text

    blocks = text_or_file(prompt, file, "--prompt")
    from titans.training.pretrained import load_write_policy

    policy = load_write_policy(model, write)
    language_model, tokenizer = load_for_inference(model)
    generate_text(
        language_model,
        tokenizer,
        blocks,
        lambda text: print(text, end="", flush=True),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        policy=policy,
    )
    print()
