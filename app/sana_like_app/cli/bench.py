"""`sana-like bench`: measurements on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sana_like_app.cli.comparing import add_commands

app = typer.Typer(help="Measure on this machine; other work beside it spoils the times.")


@app.callback()
def bench() -> None:
    """Measure on this machine; other work beside it spoils the times."""


@app.command("stream")
def stream(
    frames: Annotated[
        str, typer.Option("--frames", help="Where to look, rising, by commas.")
    ] = "81,321,961,2401",
    side: Annotated[int, typer.Option("--side", min=32, help="Of the frames, in pixels.")] = 256,
    model: Annotated[
        str | None, typer.Option("--model", help="A long-video model; else random weights.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder for stream.json and its plots.")
    ] = None,
) -> None:
    """Memory and time of a long video against one with a softmax cache of the same width."""
    from sana_like.weights.files import write_json
    from sana_like_app.bench.plot import curves_svg
    from sana_like_app.bench.stream import KINDS, measure_both
    from sana_like_app.request import parse_whole

    marks = [parse_whole(part) for part in frames.split(",")]
    report = measure_both(marks, side, model)
    typer.echo("kind     frames  peak MB  state KB  ms/frame")
    for kind in KINDS:
        for mark in report[kind]["marks"]:
            typer.echo(
                f"{kind:<8} {mark['frames']:>6} {mark['peak_mb']:>8.0f} "
                f"{mark['state_bytes'] / 1024:>9.0f} {1000 * mark['seconds_per_frame']:>9.1f}"
            )
    for name, reached in report["reached"].items():
        typer.echo(f"{name}: {'constant' if reached else 'NOT constant'}")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        write_json(output / "stream.json", report)
        for name, key, scale, unit in (
            ("memory", "state_bytes", 2**-20, "MB"),
            ("time", "seconds_per_frame", 1000.0, "ms"),
        ):
            curves = {
                kind: [(m["frames"], m[key] * scale) for m in report[kind]["marks"]]
                for kind in KINDS
            }
            what = {"memory": "What a stream remembers", "time": "Time of a frame"}[name]
            text = curves_svg(curves, title=what, across="frames", up=unit)
            (output / f"stream-{name}.svg").write_text(text, encoding="utf-8")
    if not all(report["reached"].values()):
        raise typer.Exit(1)


add_commands(app)
