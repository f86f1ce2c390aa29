"""`sana-like video`: words, and a picture, in; a clip or a video of any length out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sana_like_app.cli.generate import (
    OUTPUT,
    SAMPLING,
    DeviceOption,
    DtypeOption,
    NoMetadataOption,
    OffloadOption,
    option,
    whole,
)
from sana_like_app.request import parse_adapter, parse_interval, parse_size, random_seed

VIDEO = "Video"
FORMATS = ("mp4", "webp", "gif", "frames")


def video(
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to show, and how it moves.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="An embedded name, a folder, or a hub id; else emoji-video, or emoji-long beyond "
            "its length.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float | None, option("--seconds", panel=VIDEO, help="Length; else the model's own.")
    ] = None,
    frames: Annotated[
        int | None, whole("--frames", panel=VIDEO, help="Length in frames, any.")
    ] = None,
    image: Annotated[
        Path | None, option("--image", panel=VIDEO, help="Picture that the video begins with.")
    ] = None,
    image_fit: Annotated[
        str | None, option("--image-fit", panel=VIDEO, help="cut its edges off, or pad around it.")
    ] = None,
    resume: Annotated[
        Path | None, option("--resume", panel=VIDEO, help="State of a video to go on with.")
    ] = None,
    save_state: Annotated[
        bool, option("--save-state", panel=VIDEO, help="Write the state at the end, to go on.")
    ] = False,
    size: Annotated[
        str | None, option("--size", panel=SAMPLING, help="WIDTHxHEIGHT in pixels, any.")
    ] = None,
    steps: Annotated[int | None, whole("--steps", panel=SAMPLING, help="1 or more.")] = None,
    guidance_scale: Annotated[
        float | None,
        option("--guidance-scale", panel=SAMPLING, help="Weight of the prompt; 1 turns it off."),
    ] = None,
    guidance_interval: Annotated[
        str | None,
        option("--guidance-interval", panel=SAMPLING, help="LOW:HIGH, part of the steps, 0 to 1."),
    ] = None,
    stg_scale: Annotated[
        float | None, option("--stg-scale", panel=SAMPLING, help="Weight of skip-layer guidance.")
    ] = None,
    negative_prompt: Annotated[
        str | None, option("--negative-prompt", panel=SAMPLING, help="What to stay away from.")
    ] = None,
    scheduler: Annotated[
        str | None, option("--scheduler", panel=SAMPLING, help="flow-dpm, flow-euler or flow-heun.")
    ] = None,
    seed: Annotated[
        int | None, whole("--seed", panel=SAMPLING, help="Drawn and printed if absent.")
    ] = None,
    loras: Annotated[
        list[str] | None, typer.Option("--lora", metavar="PATH[:SCALE]", help="Adapter; repeat.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    offload: OffloadOption = "none",
    output: Annotated[
        Path | None, option("--output", panel=OUTPUT, help="A .mp4, .webp or .gif, or a folder.")
    ] = None,
    file_format: Annotated[
        str, option("--format", panel=OUTPUT, help="In a folder: mp4, webp, gif or frames.")
    ] = "mp4",
    no_metadata: NoMetadataOption = False,
) -> None:
    """Make a video. It is written while it is made, in memory that does not grow.

    Ctrl-C finishes the frame and the file and saves the state; a second one drops both.
    """
    from sana_like_app.cli.filming import film
    from sana_like_app.setup import Placement
    from sana_like_app.video import VideoRequest

    if resume is None and seed is None:
        seed = random_seed()
    request = VideoRequest(
        prompt=prompt,
        model=model,
        seed=seed,
        seconds=seconds,
        frames=frames,
        image=image,
        image_fit=image_fit,
        resume=resume,
        size=None if size is None else parse_size(size),
        steps=steps,
        guidance_scale=guidance_scale,
        guidance_interval=parse_interval(guidance_interval) if guidance_interval else None,
        stg_scale=stg_scale,
        negative_prompt=negative_prompt,
        adapters=tuple(parse_adapter(text) for text in loras or ()),
        scheduler=scheduler,
    )
    request.check()
    if file_format not in FORMATS:
        raise ValueError(f"--format {file_format!r} is unknown; legal are {', '.join(FORMATS)}")
    film(
        request,
        Placement.choose(device, dtype, offload),
        output=output,
        file_format=file_format,
        save_state=save_state,
        metadata=not no_metadata,
    )
