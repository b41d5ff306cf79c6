"""`titans generate`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from titans.cli._loading import Write, load_for_inference, load_write_policy
from titans.errors import TitansError

if TYPE_CHECKING:
    from titans.models.write_policy import WritePolicy

_PIECE_LENGTH = 2048
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
    write: Write = "always",
) -> None:
    """Go on from a prompt, printing the text as it comes.

    The prompt is streamed through the memory in pieces: its length is bounded by patience, not by memory.

    [bold]Example:[/] titans generate runs/tiny-cpu --file book.txt --max-new-tokens 500 --temperature 0.7
    """
    if (prompt is None) == (file is None):
        raise TitansError("give the text to go on from either as --prompt or as --file")
    policy = load_write_policy(model, write)
    language_model, tokenizer = load_for_inference(model)
    for text in continue_text(
        language_model,
        tokenizer,
        _blocks(prompt, file),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        policy=policy,
    ):
        print(text, end="", flush=True)
    print()


def continue_text(
    model: Any,
    tokenizer: Any,
    prompt: Iterable[str],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    policy: WritePolicy | None = None,
) -> Iterator[str]:
    """Generate text after a prompt that may be longer than memory.

    Args:
        model: a causal language model of this package.
        tokenizer: its tokenizer.
        prompt: the text, in consecutive parts.
        max_new_tokens: stop after this many tokens, or at the eos token.
        temperature: of the softmax; 0 takes the likeliest token.
        top_p: sample from the likeliest tokens of this total probability.
        seed: of the sampling. Default: a random one.
        policy: which tokens the memories write. Default: all.

    Yields:
        Whole characters, as soon as they are known.

    Raises:
        TitansError: the prompt is empty and the tokenizer has no bos token, a sampling option is out of its
            range, the policy is for another model, or the model fails, as with weights that hold NaN.
    """
    import torch

    from titans.data.reasons import refused_as
    from titans.data.tokenizers import encode_pieces
    from titans.generation import TextWriter, sample

    if not 0 <= temperature < math.inf:
        raise TitansError(f"temperature is {temperature}, expected a number from 0 up")
    if not 0 <= top_p <= 1:
        raise TitansError(f"top_p is {top_p}, expected a number from 0 to 1")
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    with torch.inference_mode():
        outputs: Any = None
        state = None if policy is None else policy.start(model.initial_state(1))
        context: list[int] = []
        for piece in encode_pieces(tokenizer, prompt, _PIECE_LENGTH):
            ids = torch.tensor([piece], device=model.device)
            with refused_as("the model cannot read the prompt"):
                outputs = model(ids, cache=state, use_cache=True, logits_to_keep=1)
            state = outputs.cache
            context = piece
        if outputs is None:
            raise TitansError("the prompt is empty, and this tokenizer has no bos token to start from")
        writer = TextWriter(tokenizer, context)
        for _ in range(max_new_tokens):
            token = sample(outputs.logits[0, -1].float().cpu(), temperature, top_p, generator)
            if token == tokenizer.eos_token_id:
                break
            if text := writer.add(token):
                yield text
            ids = torch.tensor([[token]], device=model.device)
            with refused_as("the model cannot go on with the text"):
                outputs = model(ids, cache=outputs.cache, use_cache=True)
        if text := writer.flush():
            yield text


def _blocks(prompt: str | None, file: Path | None) -> Iterable[str]:
    if file is None:
        text = prompt or ""
        if any("\ud800" <= character <= "\udfff" for character in text):  # how Python marks bytes it cannot decode
            raise TitansError("the prompt is not UTF-8 text: check the encoding of the terminal")
        return [text]
    from titans.data.corpora import text_blocks

    return text_blocks(file)
