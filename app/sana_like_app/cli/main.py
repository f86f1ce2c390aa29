"""The root of `sana-like`: its commands, and what becomes of errors.

Nothing heavy is imported here; each command imports what it needs when it runs.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sana_like_app.cli import bench, diagnose, generate, licenses, rerun, train, video, weights, zoo

FAILED, INTERRUPTED = 1, 130
# Errors that tell a user what to change. Anything else is a fault of the program.
EXPECTED = (ValueError, OSError, RuntimeError, ArithmeticError, ImportError, MemoryError)


class CleanGroup(TyperGroup):
    """A command group that ends every failure with one line and an exit code, no traceback."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command; errors become one line on stderr unless `--debug` was given."""
        try:
            with notices(plain=not ctx.params.get("debug")):
                return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            typer.echo("interrupted; no unfinished file was left", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except EXPECTED as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            typer.echo(f"error: {one_line(error)}", err=True)
            raise typer.Exit(FAILED) from None


app = typer.Typer(
    cls=CleanGroup,
    name="sana-like",
    help="Make pictures and videos from words with the SANA family of models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("video")(video.video)
app.command("rerun")(rerun.rerun)
app.command("inspect")(weights.inspect)
app.command("convert")(weights.convert)
app.command("doctor")(diagnose.doctor)
app.command("licenses")(licenses.licenses)
app.add_typer(bench.app, name="bench")
app.add_typer(zoo.app, name="zoo")
app.add_typer(train.app, name="train")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[  # noqa: ARG001 - read by CleanGroup
        bool, typer.Option("--debug", help="Show tracebacks; understood after a command too.")
    ] = False,
) -> None:
    """Make pictures and videos from words with the SANA family of models."""
    if version:
        from sana_like.version import __version__

        typer.echo(f"sana-like {__version__}")
        raise typer.Exit


@contextmanager
def notices(*, plain: bool) -> Iterator[None]:
    """Print warnings meant for users as `note: ...` and keep those meant for programmers."""
    with warnings.catch_warnings():
        if plain:
            for kind in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
                warnings.simplefilter("ignore", kind)
            warnings.showwarning = lambda message, *_, **__: typer.echo(
                f"note: {' '.join(str(message).split())}", err=True
            )
        yield


def one_line(error: BaseException) -> str:
    """What went wrong as one line, with the kind of error where its text says nothing."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        remedy = "ask for a smaller --size, or use --offload model or a smaller --dtype"
        return f"out of memory: {text or 'no more to be had'}; {remedy}"
    return text or type(error).__name__


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
    given = sys.argv[1:] if arguments is None else arguments
    own, marker, rest = _split_at_double_dash(given)
    debug = "--debug" in own
    own = [argument for argument in own if argument != "--debug"]
    try:
        app([*(["--debug"] if debug else []), *own, *marker, *rest], prog_name="sana-like")
    except Exception as error:
        if debug:
            traceback.print_exc()
        kind = type(error).__name__
        typer.echo(f"error: unexpected {kind}: {one_line(error)}; --debug shows where", err=True)
        raise SystemExit(FAILED) from None


def _split_at_double_dash(arguments: list[str]) -> tuple[list[str], list[str], list[str]]:
    if "--" not in arguments:
        return arguments, [], []
    at = arguments.index("--")
    return arguments[:at], ["--"], arguments[at + 1 :]
