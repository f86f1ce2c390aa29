"""Making a video while telling how it goes, and writing it frame by frame."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from sana_like.weights.files import replacing
from sana_like_app.cli.progress import counting, first_interrupt, frame_counter, quiet_libraries
from sana_like_app.paths import plan_outputs
from sana_like_app.recipes import Plan
from sana_like_app.setup import Placement
from sana_like_app.video import Film, VideoRequest, VideoStudio, video_setup

INTERRUPTED = 130
STATE_SUFFIX = ".state.safetensors"


def film(
    request: VideoRequest,
    placement: Placement,
    *,
    output: Path | None,
    file_format: str,
    save_state: bool,
    metadata: bool,
) -> None:
    """Make the video of `request` and write it while it is made.

    Args:
        request: what to make; checked already.
        placement: where to compute.
        output: a file, or a folder; see `plan_outputs`.
        file_format: of a file in a folder: `mp4`, `webp`, `gif`, or `frames` for a folder of them.
        save_state: write the state of a stream at the end as well, not only after Ctrl-C.
        metadata: write the recipe.

    Raises:
        typer.Exit: with code 130 after Ctrl-C.
    """
    path = video_path(output, file_format, request.prompt or "continued", request.seed or 0)
    quiet_libraries()
    setup = video_setup(request)
    studio = VideoStudio(setup, placement)
    count = studio.frame_count(request.frames, request.seconds)
    with first_interrupt() as interrupted:
        shot = begin(
            studio,
            request.prompt,
            request.seed,
            count,
            request.settings(),
            cancel=interrupted,
            state=request.resume,
        )
        stopped = write(shot, path, metadata=metadata, interrupted=interrupted)
    if shot.state is not None and (save_state or stopped):
        state = shot.state().save(path.with_name(path.name + STATE_SUFFIX))
        typer.echo(str(state))
    if stopped:
        typer.echo("interrupted; what was finished is whole, --resume goes on", err=True)
        raise typer.Exit(INTERRUPTED)


def film_again(plan: Plan, placement: Placement, path: Path, *, metadata: bool) -> None:
    """Make the video of a recipe once more, its changes of prompt included."""
    studio = VideoStudio(plan.setup, placement, local_files_only=True)
    settings = dict(plan.settings)
    count = studio.frame_count(settings.pop("frames", None), None)
    with first_interrupt() as interrupted:
        shot = begin(
            studio,
            plan.prompt,
            plan.seed,
            count,
            settings,
            cancel=interrupted,
            prompts=plan.prompts,
        )
        if write(shot, path, metadata=metadata, interrupted=interrupted):
            raise typer.Exit(INTERRUPTED)


def begin(
    studio: VideoStudio,
    prompt: str | None,
    seed: int | None,
    count: int,
    settings: Mapping[str, Any],
    **more: Any,
) -> Film:
    """Say where it is computed and with which seed, and begin; a clip is made at once."""
    device, dtype = studio.placement.device, studio.placement.dtype
    kind = str(dtype).removeprefix("torch.")
    seconds = count / float(studio.pipe.trained_for.rate)
    typer.echo(f"on {device}, {kind}; {count} frames, {seconds:.2f} s", err=True)
    if seed is not None:
        typer.echo(f"seed {seed}", err=True)
    from sana_like_pipelines import Cancelled

    try:
        with counting("steps") as steps:
            return studio.film(prompt, seed, count, settings, on_step=steps, **more)
    except Cancelled:  # of a clip, which is made at once, nothing is left to write
        raise KeyboardInterrupt from None


def write(shot: Film, path: Path, *, metadata: bool, interrupted: Any) -> bool:
    """Write a video and print its path, length and speed; says whether Ctrl-C ended it.

    The frames that were there then are written, as a whole file.
    """
    from sana_like_pipelines.media import clip_writer, sidecar_path
    from sana_like_pipelines.media.metadata import recipe_json

    began = time.perf_counter()
    recipe = shot.recipe() if metadata else None
    stopped = False
    with (
        frame_counter(shot.count) as tell,
        clip_writer(path, shot.rate, recipe, frames=shot.count) as writer,
    ):
        for frame in _until_cancelled(shot.frames):
            writer.write(frame)
            tell(writer.count)
            if interrupted():
                break
        stopped = writer.count < shot.count
        if stopped and writer.count == 0:
            raise KeyboardInterrupt
    if metadata:  # with the prompts that came on the way, and the length that it has
        final = {**shot.recipe(), "frames_written": writer.count}
        with replacing(sidecar_path(path)) as temporary:
            temporary.write_text(recipe_json(final) + "\n", encoding="utf-8")
    seconds = time.perf_counter() - began
    length = float(writer.count / shot.rate)
    typer.echo(f"{path}  {length:.2f} s of video in {seconds:.1f} s")
    return stopped


def video_path(output: Path | None, file_format: str, prompt: str, seed: int) -> Path:
    """Where the video goes; raises `ValueError` as `plan_outputs`."""
    from sana_like_pipelines.media.clip_formats import FORMATS

    suffix = "" if file_format == "frames" else f".{file_format}"
    legal = [known for known in FORMATS if known]
    (path,) = plan_outputs(output, [prompt], [seed], suffix=suffix, formats=legal)
    return path


def _until_cancelled(frames: Iterator[Any]) -> Iterator[Any]:
    """The frames that there are before `cancel` ends the stream in the middle of a chunk."""
    from sana_like_pipelines import Cancelled

    try:
        yield from frames
    except Cancelled:
        return
