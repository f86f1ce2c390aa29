"""Making the pictures of a request while telling how it goes, and writing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sana_like_app.cli.progress import counting, quiet_libraries
from sana_like_app.generation import Made, PreviewReport, Studio
from sana_like_app.paths import plan_outputs
from sana_like_app.request import PictureRequest
from sana_like_app.setup import Placement, check_arguments, settings_of, setup_of

if TYPE_CHECKING:
    from PIL.Image import Image


def make_and_write(
    request: PictureRequest,
    placement: Placement,
    *,
    output: Path | None,
    sheet: bool,
    preview: int | None,
    metadata: bool,
) -> None:
    """Make every picture of `request` and write it as soon as it is there.

    Args:
        request: what to make; checked already.
        placement: where to compute.
        output: see `plan_outputs`.
        sheet: also write a contact sheet.
        preview: keep a rough picture beside the output up to date, every so many steps.
        metadata: write recipes.
    """
    pictures = request.pictures()
    prompts, seeds = [prompt for prompt, _ in pictures], [seed for _, seed in pictures]
    paths = plan_outputs(output, prompts, seeds)
    quiet_libraries()
    setup, settings = setup_of(request), settings_of(request)
    check_arguments(setup.pipeline, settings)
    setup.speed.check(placement)
    studio = Studio(setup, placement)
    announce(studio, settings, seeds[: request.batch_size], last=seeds[-1])
    kept: list[Made] = []
    done = 0
    for batch_prompts, batch_seeds in request.batches():
        targets = paths[done : done + len(batch_seeds)]
        with previews(targets) as show, counting(f"{done + 1} of {len(paths)}") as steps:
            batch = studio.make(
                batch_prompts,
                batch_seeds,
                settings,
                on_step=steps,
                on_preview=show if preview else None,
                preview_every=preview or 1,
            )
        for target, one in zip(targets, batch, strict=True):
            write(target, one, metadata=metadata)
        tell_compiling(studio)
        done += len(batch)
        kept += batch if sheet else []
    if sheet:
        _write_sheet(paths, kept)


def announce(
    studio: Studio, settings: Mapping[str, Any], batch: Sequence[int], *, last: int
) -> None:
    """Say on stderr where it is computed, in how much memory, what is off, and which seeds.

    Args:
        studio: what will compute.
        settings: of its calls.
        batch: seeds of the first batch.
        last: seed of the last picture.
    """
    from sana_like_app.diagnostics import accelerations_off

    device, dtype = studio.placement.device, studio.placement.dtype
    memory = studio.estimate(settings, len(batch)).peak / 2**30
    off = accelerations_off(device) or "nothing"
    kind = str(dtype).removeprefix("torch.")
    typer.echo(f"on {device}, {kind}, about {memory:.1f} GiB; off: {off}", err=True)
    typer.echo(f"seed {batch[0]}" + (f" to {last}" if last != batch[0] else ""), err=True)


def tell_compiling(studio: Studio) -> None:
    """Say on stderr what compiling cost and saves, once for each size that was new."""
    report = studio.pipe.compile_report
    if report is not None:
        typer.echo(str(report), err=True)
        studio.pipe.compile_report = None


def write(path: Path, made: Made, *, metadata: bool) -> None:
    """Write one picture and print its path and the seconds it took."""
    from sana_like_pipelines.media import write_picture

    write_picture(made.picture, path, made.recipe if metadata else None)
    typer.echo(f"{path}  {made.seconds:.1f} s")


@contextmanager
def previews(targets: Sequence[Path]) -> Iterator[PreviewReport]:
    """Rough pictures as `NAME.preview.png` beside their targets; they go when the work ends."""
    from sana_like_pipelines.media import write_picture

    places = [target.with_name(f"{target.stem}.preview.png") for target in targets]

    def show(done: int, total: int, pictures: Sequence[Image]) -> None:  # noqa: ARG001
        for place, picture in zip(places, pictures, strict=True):
            write_picture(picture, place)

    try:
        yield show
    finally:
        for place in places:
            place.unlink(missing_ok=True)


def _write_sheet(paths: Sequence[Path], made: Sequence[Made]) -> None:
    from sana_like_pipelines.media import contact_sheet, write_picture

    labels = [f"{one.prompt} ({one.seed})" for one in made]
    first = paths[0].stem.removesuffix("-1") if len(paths) > 1 else paths[0].stem
    path = paths[0].with_name(f"{first}-sheet.png")
    write_picture(contact_sheet([one.picture for one in made], labels), path)
    typer.echo(str(path))
