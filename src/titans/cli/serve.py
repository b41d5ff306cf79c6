"""`titans serve`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from titans.cli._loading import Write, load_for_inference
from titans.errors import TitansError
from titans.extras import missing


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder or hub id.")],
    memories: Annotated[
        str, typer.Option(metavar="PLACE", help="Where memories are kept: a folder, or a URL such as s3://bucket/path.")
    ] = "memories",
    host: Annotated[str, typer.Option(help="Address to bind to; beyond this machine only with --keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help='API keys and their tenants: JSON, {"KEY": "TENANT"}.')
    ] = None,
    write: Write = None,
    gated: Annotated[
        bool, typer.Option(help="Whether requests may write gated, which reads a prompt several times as slowly.")
    ] = True,
    max_batch: Annotated[int, typer.Option(min=1, help="Requests in one forward pass.")] = 32,
    max_queue: Annotated[
        int, typer.Option(min=0, help="Requests of a tenant that may wait; more get status 429.")
    ] = 64,
    max_memories: Annotated[
        int | None, typer.Option(min=1, help="Memories a tenant may have.", show_default="any number")
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request's body.")] = 4 << 20,
    max_state: Annotated[int, typer.Option(min=1, help="Bytes of a memory.")] = 256 << 20,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 1 << 17,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 4096,
    stop_seconds: Annotated[
        int, typer.Option(min=0, help="Seconds that answers have to end when it is stopped.")
    ] = 120,
    log_names: Annotated[
        bool, typer.Option(help="Name users and their memories in the log; stand-ins are there otherwise.")
    ] = False,
) -> None:
    r"""Serve a model over the OpenAI API, with memories that last, and a page to see them.

    A request that names a memory ("memory", and "user") goes on from it; what it was told before is not sent again.
    Needs the extra serve: pip install "titans-lm\[serve]".

    [bold]Example:[/] titans serve runs/tiny-cpu --port 8000
    """
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise missing(error, "serve", "serving") from error
    from titans.serving.access import Keys, check_host

    check_host(host, keys is not None)  # before the model is loaded
    known = None if keys is None else Keys.load(keys)
    from titans.training.pretrained import load_write_policy

    policy = load_write_policy(model, write)
    if policy.write == "gated" and not gated:
        raise TitansError("--no-gated, but new memories would be written gated: add --write always or --write never")
    if write is None and policy.write != "always":
        typer.echo(f"new memories write: {policy.write}, which titans calibrate found best (see --write)", err=True)
    from titans.serving.app import Limits
    from titans.serving.logs import log_as_json
    from titans.serving.server import build_app
    from titans.serving.server import serve as run

    if hasattr(signal, "SIGHUP"):  # not on Windows; the server reads its keys again at it, and before there is none
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    language_model, tokenizer = load_for_inference(model)
    limits = Limits(max_body, max_state, max_prompt_tokens, max_new_tokens)
    app = build_app(
        language_model, tokenizer, model, memories=memories, keys=known, policy=policy, allow_gated=gated,
        max_batch=max_batch, max_queue=max_queue, max_memories=max_memories, limits=limits,
    )  # fmt: skip
    log_as_json(log_names)
    run(app, host, port, lambda address: typer.echo(f"{model} at {address}"), keys=known, stop_seconds=stop_seconds)
