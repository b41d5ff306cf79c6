"""`titans train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from titans.cli._arguments import Overrides


def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.yaml", help="The experiment: see recipes/.")],
    overrides: Overrides = None,
) -> None:
    """Train a model as a recipe says, or go on from its last checkpoint.

    Sections of a recipe: [bold]model[/] (TitansConfig fields, or a folder to go on from), [bold]tokenizer[/]
    ("bytes", or a path or hub id), [bold]data[/] (train, evaluation, sequence_length, carry_state), and
    [bold]training[/] (any field of transformers.TrainingArguments, write_cost and piece_length).

    Ctrl-C saves a checkpoint first; the same command then resumes from it.

    [bold]Example:[/] titans train recipes/tiny-cpu.yaml training.max_steps=200 data.train=my/texts
    """
    from titans.training.recipe import load_recipe

    checked = load_recipe(recipe, overrides or [])

    from titans.cli._loading import silence_loading
    from titans.training import run

    silence_loading()
    run.train(checked, report=typer.echo)
