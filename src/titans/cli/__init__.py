"""The command line: one file per command, and the one door through which its errors leave."""

from __future__ import annotations

import errno
import io
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from titans.cli import calibrate, compare, demo, evaluate, forecast, generate, info, inspect, memories, serve, train
from titans.errors import TitansError


class _Door(TyperGroup):
    """Turns what a user can correct into one sentence on stderr and exit status 2, and Ctrl-C into 130."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except TitansError as error:
            _leave(f"error: {error}", 2, error)
        except BrokenPipeError:
            raise  # the reader of our output has gone: typer ends quietly
        except OSError as error:
            if error.filename is None and error.errno != errno.ENOSPC:
                raise
            where = "" if error.filename is None else f"{error.filename}: "
            _leave(f"error: {where}{error.strerror}", 2, error)
        except KeyboardInterrupt as error:
            _leave(f"\n{error}" if str(error) else "\ninterrupted", 130, error)


def _leave(sentence: str, status: int, error: BaseException) -> None:
    print(sentence, file=sys.stderr)
    raise typer.Exit(status) from error


app = typer.Typer(
    cls=_Door,
    name="titans",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Titans: language models that learn to memorize at test time.",
    epilog="Start with: titans train recipes/tiny-cpu.yaml",
)
app.command()(demo.demo)
app.command()(train.train)
app.command()(forecast.forecast)
app.command()(generate.generate)
app.add_typer(evaluate.app, name="evaluate")
app.command()(compare.compare)
app.command()(calibrate.calibrate)
app.command()(info.info)
app.command()(inspect.inspect)
app.command(context_settings={"auto_envvar_prefix": "TITANS_SERVE"})(serve.serve)  # operators set options so
app.add_typer(memories.app, name="memories")


def main() -> None:
    """Run the command line; a character that the output cannot show comes out as a question mark."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    app()
