"""`sana-like rerun`: the same picture or video again from the recipe it carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sana_like_app.cli.generate import (
    AttentionBackendOption,
    DeviceOption,
    NoMetadataOption,
    OffloadOption,
)


def rerun(
    file: Annotated[Path, typer.Argument(help="File with a recipe, or its JSON file.")],
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write; else NAME-again.png or .mp4.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Go on with other weights or input pictures.")
    ] = False,
    device: DeviceOption = "auto",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Other than the recipe's: fp32, bf16, fp16.")
    ] = None,
    offload: OffloadOption = "none",
    attention_backend: AttentionBackendOption = None,
    no_metadata: NoMetadataOption = False,
) -> None:
    """Make a picture or video again from its recipe.

    On the same machine with the same versions the result is the same, byte for byte. Refused when
    the weights are not those of the recipe. The network is not used.
    """
    from sana_like_app.cli.filming import film_again, video_path
    from sana_like_app.cli.making import announce, tell_compiling, write
    from sana_like_app.cli.progress import counting, quiet_libraries
    from sana_like_app.generation import Studio
    from sana_like_app.paths import plan_outputs
    from sana_like_app.recipes import read_plan
    from sana_like_app.setup import Placement

    plan = read_plan(file)
    placement = Placement.choose(device, dtype or plan.dtype, offload)
    if attention_backend is not None:
        plan = plan.with_backend(attention_backend)
    plan.setup.speed.check(placement)
    stem = Path(file.name.removesuffix(".json")).stem
    suffix = ".mp4" if plan.is_video else ".png"
    target = file.with_name(f"{stem}-again{suffix}") if output is None else output
    if plan.is_video:
        path = video_path(target, "mp4", plan.prompt, plan.seed)
    else:
        (path,) = plan_outputs(target, [plan.prompt], [plan.seed])
    quiet_libraries()
    if not force:
        plan.check_unchanged()
    if plan.is_video:
        film_again(plan, placement, path, metadata=not no_metadata)
        return
    studio = Studio(plan.setup, placement, local_files_only=True)
    announce(studio, plan.settings, [plan.seed], last=plan.seed)
    with counting("steps") as steps:
        (made,) = studio.make([plan.prompt], [plan.seed], plan.settings, on_step=steps)
    write(path, made, metadata=not no_metadata)
    tell_compiling(studio)
