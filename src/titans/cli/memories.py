"""`titans memories`: what an operator does with a store of memories."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from titans.errors import TitansError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from titans.persistence import BackupReport, MemoryInfo, MemoryStore

app = typer.Typer(no_args_is_help=True, help="List, back up, restore and migrate the memories that titans serve keeps.")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model folder or hub id that is, or will be, served.")]
Memories = Annotated[str, typer.Option(metavar="PLACE", help="Where the memories are: a folder or a URL.")]
Tenant = Annotated[str | None, typer.Option(help="Of this tenant only.", show_default="all")]


@app.callback()
def memories() -> None:
    """List, back up, restore and migrate the memories that titans serve keeps; all while it runs."""


@app.command("list")
def list_memories(model: Model, memories: Memories = "memories", tenant: Tenant = None) -> None:
    """Show every memory, and which of them the model cannot go on from.

    [bold]Example:[/] titans memories list runs/tiny-cpu --memories memories
    """
    store = _open(model, memories)
    kinds: Counter[str] = Counter()
    for name, info in _each(store, tenant):
        kind = "damaged" if isinstance(info, str) else "foreign" if info.foreign else "good"
        kinds[kind] += 1
        if isinstance(info, str):
            typer.echo(f"{name}  {info}")
            continue
        known = f"version {info.version:,}, {info.tokens:,} tokens, {info.bytes:,} bytes, {info.updated}"
        typer.echo(f"{name}  {known}{', of another model' if info.foreign else ''}")
    typer.echo(f"memories: {kinds.total():,}, of another model: {kinds['foreign']:,}, damaged: {kinds['damaged']:,}")


@app.command()
def migrate(
    model: Model,
    memories: Memories = "memories",
    tenant: Tenant = None,
    adopt: Annotated[bool, typer.Option("--adopt", help="Take them for the model's, where the shapes fit.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them: their next requests start anew.")] = False,
) -> None:
    """Deal with the memories of another model, after a model was trained anew; back them up before.

    What a memory holds was written by other weights, and no command can translate it. After a little more training
    the new weights may read it as well: adopt one, and try. Otherwise delete them, or go on serving the old model.

    [bold]Example:[/] titans memories migrate runs/newer --memories memories --adopt
    """
    from titans.persistence import ConflictError, StateFileError, UnknownMemoryError

    if adopt == delete:
        raise TitansError("choose what becomes of the memories of another model: either --adopt or --delete")
    store, done, left = _open(model, memories), 0, 0
    for name, info in _each(store, tenant):
        if isinstance(info, str) or not info.foreign:
            continue
        try:
            if adopt:
                store.adopt(info.tenant, info.name)
            else:
                store.delete(info.tenant, info.name)
            done += 1
        except (ConflictError, UnknownMemoryError, StateFileError) as error:
            typer.echo(f"left: {name}: {error}", err=True)
            left += 1
    typer.echo(f"{'adopted' if adopt else 'deleted'}: {done:,} memories of another model")
    if left:
        raise TitansError(f"{left:,} memories of another model were left as they are, for the reasons above")


@app.command()
def backup(
    memories: Annotated[str, typer.Argument(metavar="PLACE", help="Where the memories are: a folder or a URL.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="A new folder, or a URL.")],
) -> None:
    """Copy all memories while they are served: none is missed, torn, or older than at the start.

    [bold]Example:[/] titans memories backup memories backups/monday
    """
    from titans.persistence import backup as copy

    _say(copy(_apart(memories, to), to), to)


@app.command()
def restore(
    copy: Annotated[str, typer.Argument(metavar="BACKUP", help="What titans memories backup made.")],
    memories: Annotated[str, typer.Argument(metavar="PLACE", help="A new folder, or a URL, to serve from.")],
) -> None:
    """Make a store of a backup; its versions are higher than any that clients may still hold.

    [bold]Example:[/] titans memories restore backups/monday memories
    """
    from titans.persistence import restore as put_back

    _say(put_back(_apart(copy, memories), memories), memories)


def _say(copied: BackupReport, to: str) -> None:
    for sentence in copied.damaged:
        typer.echo(f"left out: {sentence}", err=True)
    typer.echo(f"memories: {copied.memories:,}, {copied.bytes:,} bytes, in {to}")
    if copied.damaged:
        raise TitansError(f"what is damaged was left out, {len(copied.damaged):,} in all: reset or delete it")


def _existing(place: str) -> str:
    """Refuse a folder that is not there, which opening a store would make, and one that is no store."""
    from titans.persistence.names import to_name

    if "://" in place:
        return place
    expected = "expected the PLACE of titans serve --memories PLACE, or a URL"
    if not Path(place).is_dir():
        raise TitansError(f"there is no folder {place}: {expected}")
    names = [path.name for path in Path(place).iterdir() if not path.name.startswith("=")]
    if names and not any(map(to_name, names)):
        raise TitansError(f"{place} holds other things than memories, such as {names[0]}: {expected}")
    return place


def _apart(place: str, to: str) -> str:
    """Refuse to copy a store into itself."""
    place = _existing(place)
    if "://" not in place + to and Path(to).resolve().is_relative_to(Path(place).resolve()):
        raise TitansError(f"{to} lies in {place}: give a folder outside of it")
    return place


def _open(model: str, memories: str) -> MemoryStore:
    """Open the store of a model."""
    place = _existing(memories)
    from titans.cli._loading import silence_loading
    from titans.persistence import MemoryStore
    from titans.training.pretrained import load_model

    silence_loading()
    return MemoryStore(place, load_model(model))


def _each(store: MemoryStore, tenant: str | None) -> Iterator[tuple[str, MemoryInfo | str]]:
    """Iterate over the memories: what to call each, and what is known of it, or what is wrong with its file."""
    from titans.persistence import StateFileError

    for one in store.tenants() if tenant is None else [tenant]:
        for memory in store.names(one):
            try:
                info: MemoryInfo | str | None = store.info(one, memory)
            except StateFileError as error:
                info = str(error)
            if info is not None:
                yield f"{one} {memory}", info
