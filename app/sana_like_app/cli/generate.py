"""`sana-like generate`: words in, pictures out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sana_like_app.request import (
    PictureRequest,
    parse_adapter,
    parse_interval,
    parse_size,
    parse_whole,
    random_seed,
    read_prompts,
)
from sana_like_app.speed import Speed

SAMPLING, PICTURES, MACHINE, OUTPUT = "Sampling", "Pictures to start from", "Machine", "Output"
SPEED = "Speed"


def option(*names: str, panel: str, help: str, **more: Any) -> Any:
    """An option under the heading `panel`, whose default is not shown."""
    return typer.Option(*names, rich_help_panel=panel, help=help, show_default=False, **more)


def whole(*names: str, panel: str, help: str) -> Any:
    """An option that takes a whole number, as it is written."""
    # Typer alone would read 512.0 as 512.
    return option(*names, panel=panel, help=help, parser=parse_whole, metavar="INTEGER")


DeviceOption = Annotated[
    str, option("--device", panel=MACHINE, help="auto, cpu, cuda, cuda:N (ROCm too), mps.")
]
DtypeOption = Annotated[str, option("--dtype", panel=MACHINE, help="auto, fp32, bf16, fp16.")]
OffloadOption = Annotated[
    str, option("--offload", panel=MACHINE, help="none, model, sequential, group.")
]
AttentionBackendOption = Annotated[
    str | None,
    option("--attention-backend", panel=SPEED, help="Of the attention to the text; see doctor."),
]
NoMetadataOption = Annotated[
    bool, option("--no-metadata", panel=OUTPUT, help="Write no recipe, in or beside the picture.")
]


def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT...", help="What to show; several make several."),
    ] = None,
    prompts_file: Annotated[
        Path | None, typer.Option(help="A text file with further prompts, one a line.")
    ] = None,
    model: Annotated[str, typer.Option(help="An embedded name, a folder, or a hub id.")] = "emoji",
    size: Annotated[
        str | None, option("--size", panel=SAMPLING, help="WIDTHxHEIGHT in pixels, any.")
    ] = None,
    width: Annotated[int | None, whole("--width", panel=SAMPLING, help="In pixels.")] = None,
    height: Annotated[int | None, whole("--height", panel=SAMPLING, help="In pixels.")] = None,
    steps: Annotated[int | None, whole("--steps", panel=SAMPLING, help="1 or more.")] = None,
    guidance_scale: Annotated[
        float | None,
        option("--guidance-scale", panel=SAMPLING, help="Weight of the prompt; 1 turns it off."),
    ] = None,
    guidance_interval: Annotated[
        str | None,
        option("--guidance-interval", panel=SAMPLING, help="LOW:HIGH, part of the steps, 0 to 1."),
    ] = None,
    pag_scale: Annotated[
        float | None,
        option("--pag-scale", panel=SAMPLING, help="Weight of perturbed-attention guidance."),
    ] = None,
    negative_prompt: Annotated[
        str | None, option("--negative-prompt", panel=SAMPLING, help="What to stay away from.")
    ] = None,
    scheduler: Annotated[
        str | None,
        option("--scheduler", panel=SAMPLING, help="flow-dpm, flow-euler or flow-heun."),
    ] = None,
    seed: Annotated[
        int | None,
        whole("--seed", panel=SAMPLING, help="Of the first picture; drawn and printed if absent."),
    ] = None,
    count: Annotated[int, whole("--count", panel=SAMPLING, help="Pictures per prompt.")] = 1,
    image: Annotated[
        Path | None, option("--image", panel=PICTURES, help="Picture to start from.")
    ] = None,
    strength: Annotated[
        float | None,
        option(
            "--strength",
            panel=PICTURES,
            help="Above 0, which keeps the picture, to 1, which ignores it.",
        ),
    ] = None,
    mask: Annotated[
        Path | None, option("--mask", panel=PICTURES, help="White where to paint anew.")
    ] = None,
    controls: Annotated[
        list[Path] | None, option("--control", panel=PICTURES, help="Picture to follow; repeat.")
    ] = None,
    controlnets: Annotated[
        list[str] | None,
        option("--controlnet", panel=PICTURES, help="Model that reads it; one per --control."),
    ] = None,
    control_scale: Annotated[
        float | None, option("--control-scale", panel=PICTURES, help="How strongly it counts.")
    ] = None,
    loras: Annotated[
        list[str] | None, typer.Option("--lora", metavar="PATH[:SCALE]", help="Adapter; repeat.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    offload: OffloadOption = "none",
    batch_size: Annotated[
        int, whole("--batch-size", panel=MACHINE, help="Pictures made at once.")
    ] = 1,
    cache_threshold: Annotated[
        float | None,
        option(
            "--cache-threshold",
            panel=SPEED,
            help="Skip blocks in steps in which the first changes by less, such as 0.1.",
        ),
    ] = None,
    guidance_passes: Annotated[
        str | None,
        option(
            "--guidance-passes",
            panel=SPEED,
            help="auto, batched (faster) or sequential (less memory).",
        ),
    ] = None,
    quantize: Annotated[
        str | None,
        option(
            "--quantize", panel=SPEED, help="int8, fp8, int8-weights or fp8-weights; checked first."
        ),
    ] = None,
    attention_backend: AttentionBackendOption = None,
    compile_blocks: Annotated[
        bool,
        option(
            "--compile",
            panel=SPEED,
            help="Compile the blocks: tens of seconds and more for each new size, which a few "
            "pictures do not pay back; says what it cost and saved.",
        ),
    ] = False,
    cuda_graphs: Annotated[
        bool, option("--cuda-graphs", panel=SPEED, help="Replay the steps on a CUDA device.")
    ] = False,
    output: Annotated[
        Path | None, option("--output", panel=OUTPUT, help="A .png file, or a folder.")
    ] = None,
    sheet: Annotated[
        bool, option("--contact-sheet", panel=OUTPUT, help="Also all pictures on one.")
    ] = False,
    preview: Annotated[
        int | None,
        whole("--preview", panel=OUTPUT, help="Show a rough picture beside it every K steps."),
    ] = None,
    no_metadata: NoMetadataOption = False,
) -> None:
    """Make pictures from prompts."""
    if size is not None:
        if width is not None or height is not None:
            raise ValueError("give --size, or --width and --height, not both")
        width, height = parse_size(size)
    texts = [*(prompts or ()), *(read_prompts(prompts_file) if prompts_file else ())]
    if not texts:
        raise typer.BadParameter("give a PROMPT, or prompts in --prompts-file")
    if preview is not None and preview < 1:
        raise ValueError(f"--preview is {preview}; it counts steps, from 1")
    request = PictureRequest(
        prompts=tuple(texts),
        seed=random_seed() if seed is None else seed,
        model=model,
        negative_prompt=negative_prompt,
        width=width,
        height=height,
        steps=steps,
        guidance_scale=guidance_scale,
        guidance_interval=parse_interval(guidance_interval) if guidance_interval else None,
        pag_scale=pag_scale,
        count=count,
        batch_size=batch_size,
        image=image,
        strength=strength,
        mask=mask,
        controls=tuple(controls or ()),
        controlnets=tuple(controlnets or ()),
        control_scale=control_scale,
        adapters=tuple(parse_adapter(text) for text in loras or ()),
        scheduler=scheduler,
        cache_threshold=cache_threshold,
        guidance_passes=guidance_passes,
        speed=Speed(
            quantize=quantize,
            attention_backend=attention_backend,
            compile=compile_blocks,
            cuda_graphs=cuda_graphs,
        ),
    )
    request.check()
    from sana_like_app.cli.making import make_and_write
    from sana_like_app.setup import Placement

    make_and_write(
        request,
        Placement.choose(device, dtype, offload),
        output=output,
        sheet=sheet,
        preview=preview,
        metadata=not no_metadata,
    )
