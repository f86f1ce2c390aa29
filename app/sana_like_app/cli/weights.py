"""`sana-like inspect` and `sana-like convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[Path, typer.Argument(help="NVlabs' .pth, or a .safetensors file.")],
    folder: Annotated[Path, typer.Argument(help="Model folder to write.")],
    image_size: Annotated[
        int | None,
        typer.Option(
            "--image-size", help="Pixels a transformer was trained for, if the file is silent."
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="Published shape, such as dc-ae-f32c32-mix-1.0.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="fp32, bf16 or fp16; else as stored.")
    ] = None,
) -> None:
    """Turn a published checkpoint into safetensors, read in a process of its own."""
    from sana_like.weights.convert import convert_checkpoint
    from sana_like_app.devices import DTYPES

    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; legal are fp32, bf16, fp16")
    report = convert_checkpoint(
        source, folder, image_size=image_size, preset=preset, dtype=DTYPES.get(dtype or "")
    )
    shapes = f" ({', '.join(report.presets)})" if report.presets else ""
    typer.echo(f"{report.folder}  {report.class_name}{shapes}")
    typer.echo(f"{report.num_parameters} parameters in {report.written} tensors", err=True)
    for what, names in (("left out", report.dropped), ("ignored", report.ignored)):
        if names:
            typer.echo(f"{what}: {', '.join(names)}", err=True)


def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_FOLDER",
            help="Weights, a model folder, an embedded name, or a picture.",
        ),
    ],
) -> None:
    """Say what a file is: architecture, formats, counts and hashes, or a picture's recipe."""
    import json

    from sana_like_pipelines.media import read_recipe
    from sana_like_pipelines.media.write import FORMATS

    if Path(target).suffix.lower() in FORMATS:
        typer.echo(json.dumps(read_recipe(target), indent=2, ensure_ascii=False))
        return
    from sana_like.weights.inspect import inspect_weights

    for summary in inspect_weights(target):
        typer.echo(str(summary))
