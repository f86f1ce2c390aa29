"""`sana-like licenses`."""

from __future__ import annotations

import textwrap

import typer

from sana_like_app.terms import TERMS


def licenses() -> None:
    """State the terms of the code, of the weights and of the pictures."""
    for subject, statement in TERMS.items():
        typer.echo(subject)
        typer.echo(textwrap.indent(textwrap.fill(statement, 86), "  ") + "\n")
