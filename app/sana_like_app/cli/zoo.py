"""`sana-like zoo`: the embedded models."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="The embedded models: list, show a card, fetch the text encoder.")


@app.command("list")
def list_models() -> None:
    """List the embedded models with the bytes they take, and whether the text encoder is there."""
    from sana_like.weights.hub import ZOO, embedded_names
    from sana_like.zoo.fetch import SMOLLM2, is_fetched

    for name in embedded_names():
        size = sum(file.stat().st_size for file in (ZOO / name).rglob("*") if file.is_file())
        typer.echo(f"{name:<16}{size / 1e6:7.1f} MB  embedded")
    state = "fetched" if is_fetched() else "missing: run `sana-like zoo fetch`"
    typer.echo(f"{SMOLLM2.name:<16}{SMOLLM2.file_size / 1e6:7.1f} MB  {state}")


@app.command("show")
def show_card(
    name: Annotated[str, typer.Argument(help="An embedded model, as `zoo list` names it.")],
) -> None:
    """Print the card of an embedded model: data, licence, recipe, scores."""
    from sana_like.weights.hub import ZOO, embedded_names

    names = embedded_names()
    if name not in names:
        raise ValueError(f"{name!r} is no embedded model; there are: {', '.join(names) or 'none'}")
    typer.echo((ZOO / name / "README.md").read_text(encoding="utf-8"))


@app.command("fetch")
def fetch_encoder(
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is there.")] = False,
) -> None:
    """Fetch the text encoder of the embedded models once, check its SHA-256, and keep it."""
    from sana_like.zoo.fetch import fetch

    typer.echo(str(fetch(force=force)))
