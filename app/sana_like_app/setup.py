"""What a run needs, chosen and checked before any weights are read."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sana_like_app.devices import check_offload, choose_device, choose_dtype
from sana_like_app.fingerprint import fingerprint
from sana_like_app.request import Adapter, PictureRequest
from sana_like_app.speed import Speed

if TYPE_CHECKING:
    import torch

# A request's values that are arguments of a call, and what the pipelines call them.
ARGUMENTS = {
    "width": "width",
    "height": "height",
    "steps": "num_inference_steps",
    "guidance_scale": "guidance_scale",
    "guidance_interval": "guidance_interval",
    "pag_scale": "pag_scale",
    "cache_threshold": "first_block_cache",
    "guidance_passes": "guidance_passes",
    "strength": "strength",
    "control_scale": "controlnet_conditioning_scale",
    "negative_prompt": "negative_prompt",
}
OPTIONS = {
    "num_inference_steps": "--steps",
    "first_block_cache": "--cache-threshold",
    "controlnet_conditioning_scale": "--control-scale",
}
PIPELINES = (
    "SanaPipeline",
    "SanaSprintPipeline",
    "SanaImg2ImgPipeline",
    "SanaSprintImg2ImgPipeline",
    "SanaInpaintPipeline",
    "SanaControlNetPipeline",
)
VIDEO_PIPELINES = ("SanaVideoPipeline", "SanaImageToVideoPipeline", "SanaLongVideoPipeline")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and in which number format a run computes; checked by `Placement.choose`."""

    device: torch.device
    dtype: torch.dtype
    offload: str = "none"

    @classmethod
    def choose(cls, device: str = "auto", dtype: str = "auto", offload: str = "none") -> Placement:
        """Check the names that a user gave; see `devices`.

        Raises:
            DeviceError: the machine cannot do it.
        """
        place = choose_device(device)
        check_offload(offload, place)
        return cls(device=place, dtype=choose_dtype(dtype, place), offload=offload)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all pictures of a run share, in plain values that a recipe can hold."""

    pipeline: str
    model: str
    controlnets: tuple[str, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    scheduler: str | None = None
    speed: Speed = field(default_factory=Speed)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Argument name to path, or to a list of paths, of the pictures that go in."""


def setup_of(request: PictureRequest) -> Setup:
    """Choose the pipeline that a request means; reads the model's index but no weights.

    Raises:
        WeightsError: there is no such model, or it cannot do what was asked.
        ValueError: the picture to start from cannot be read.
    """
    inputs: dict[str, Any] = {}
    if request.image is not None:
        inputs["image"] = str(request.image)
    if request.mask is not None:
        inputs["mask_image"] = str(request.mask)
    if request.controls:
        inputs["control_image"] = [str(path) for path in request.controls]
    return Setup(
        pipeline=_pipeline_for(request),
        model=request.model,
        controlnets=request.controlnets,
        adapters=request.adapters,
        scheduler=request.scheduler,
        speed=request.speed,
        inputs=inputs,
    )


def _pipeline_for(request: PictureRequest) -> str:
    if request.mask is not None:
        return "SanaInpaintPipeline"
    if request.controls:
        return "SanaControlNetPipeline"
    from sana_like.weights.hub import resolve_folder
    from sana_like_pipelines.loading import INDEX_NAME, Index
    from sana_like_pipelines.media import read_picture

    if request.image is not None:
        read_picture(request.image)  # quicker to refuse than a model is to find
    index = Index.read(resolve_folder(request.model, allow_patterns=[INDEX_NAME]))
    kind = "Sprint" if "Sprint" in index.pipeline else ""
    return f"Sana{kind}{'Pipeline' if request.image is None else 'Img2ImgPipeline'}"


def settings_of(request: PictureRequest) -> dict[str, Any]:
    """Arguments of a call that the request sets; the others are left to the pipeline."""
    values = {theirs: getattr(request, name) for name, theirs in ARGUMENTS.items()}
    return {name: value for name, value in values.items() if value is not None}


def check_arguments(pipeline: str, names: Iterable[str]) -> None:
    """Refuse arguments that a pipeline's call does not take; nothing is loaded.

    Raises:
        ValueError: naming the option, where there is one.
    """
    import sana_like_pipelines

    known = inspect.signature(getattr(sana_like_pipelines, pipeline).__call__).parameters
    for name in names:
        if name not in known:
            option = OPTIONS.get(name, "--" + name.replace("_", "-"))
            raise ValueError(f"{pipeline} takes no {name} ({option}); leave it out")


def weights_of(setup: Setup) -> dict[str, str]:
    """Name in the setup to fingerprint, of the model, its ControlNets and its adapters.

    Raises:
        WeightsError: one of them is not on this machine.
    """
    from sana_like.weights.hub import resolve_folder

    marks = {}
    for name in (setup.model, *setup.controlnets):
        folder = resolve_folder(name, local_files_only=True)
        marks[name] = fingerprint(folder)
        for part in _embedded_parts(folder):
            marks[part] = fingerprint(resolve_folder(part))
    for adapter in setup.adapters:
        marks[str(adapter.path)] = fingerprint(adapter.path)
    return marks


def _embedded_parts(folder: Path) -> list[str]:
    """Embedded models that the index of a pipeline folder names as its parts."""
    from sana_like.weights.hub import embedded_names
    from sana_like_pipelines.loading import INDEX_NAME, ZOO_LIBRARY, Index

    if not (folder / INDEX_NAME).is_file():
        return []
    entries = Index.read(folder).components.values()
    there = embedded_names()
    return [name for library, name in entries if library == ZOO_LIBRARY and name in there]
