"""`sana-like doctor`."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    picture: Annotated[
        bool, typer.Option("--picture", help="Also make one picture in memory and check it.")
    ] = False,
) -> None:
    """Say what this machine has, what is off and why. Exit code 1 when something is missing."""
    from sana_like_app.cli.progress import quiet_libraries
    from sana_like_app.diagnostics import report, try_picture

    facts = report()
    if picture:
        quiet_libraries()
        facts.append(try_picture())
    for fact in facts:
        typer.echo(f"{'  ' if fact.ok else '! '}{fact.subject:<16} {fact.statement}")
    if not all(fact.ok for fact in facts):
        raise typer.Exit(1)
