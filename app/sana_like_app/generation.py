"""From a request to pictures: a pipeline on a device, and calls to it that can be repeated."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sana_like.zoo.fetch import sha256_of
from sana_like_app.devices import check_offload, choose_device, choose_dtype
from sana_like_app.fingerprint import fingerprint
from sana_like_app.request import Adapter, PictureRequest

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from sana_like_pipelines.memory import MemoryEstimate

# A request's values that are arguments of a call, and what the pipelines call them.
ARGUMENTS = {
    "width": "width",
    "height": "height",
    "steps": "num_inference_steps",
    "guidance_scale": "guidance_scale",
    "guidance_interval": "guidance_interval",
    "pag_scale": "pag_scale",
    "strength": "strength",
    "control_scale": "controlnet_conditioning_scale",
    "negative_prompt": "negative_prompt",
}
OFFLOAD_KINDS = {"none": None, "model": "model", "sequential": "layers", "group": "layers"}
OPTIONS = {
    "num_inference_steps": "--steps",
    "controlnet_conditioning_scale": "--control-scale",
}
PIPELINES = (
    "SanaPipeline",
    "SanaSprintPipeline",
    "SanaImg2ImgPipeline",
    "SanaInpaintPipeline",
    "SanaControlNetPipeline",
)

StepReport = Callable[[int, int], None]
PreviewReport = Callable[[int, int, "list[Image]"], None]


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
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Argument name to path, or to a list of paths, of the pictures that go in."""


@dataclass(frozen=True)
class Made:
    """One picture, its recipe, and the seconds that it took."""

    picture: Image
    recipe: dict[str, Any]
    seconds: float
    prompt: str
    seed: int


def setup_of(request: PictureRequest) -> Setup:
    """Choose the pipeline that a request means; reads the model's index but no weights.

    Raises:
        WeightsError: there is no such model, or it cannot do what was asked.
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
        inputs=inputs,
    )


def _pipeline_for(request: PictureRequest) -> str:
    if request.mask is not None:
        return "SanaInpaintPipeline"
    if request.image is not None:
        return "SanaImg2ImgPipeline"
    if request.controls:
        return "SanaControlNetPipeline"
    from sana_like.weights.hub import resolve_folder
    from sana_like_pipelines.loading import INDEX_NAME, Index

    index = Index.read(resolve_folder(request.model, allow_patterns=[INDEX_NAME]))
    return "SanaSprintPipeline" if "Sprint" in index.pipeline else "SanaPipeline"


def settings_of(request: PictureRequest) -> dict[str, Any]:
    """Arguments of a call that the request sets; the others are left to the pipeline."""
    values = {theirs: getattr(request, name) for name, theirs in ARGUMENTS.items()}
    return {name: value for name, value in values.items() if value is not None}


class Studio:
    """A loaded pipeline and the pictures that go into every call.

    Args:
        setup: which pipeline, with what.
        placement: where it computes.
        local_files_only: never use the network for the model.

    Raises:
        WeightsError: weights are missing or do not fit.
        ValueError: an input picture cannot be read.
    """

    def __init__(
        self, setup: Setup, placement: Placement, *, local_files_only: bool = False
    ) -> None:
        if setup.pipeline not in PIPELINES:
            raise ValueError(f"unknown pipeline {setup.pipeline!r}; known: {', '.join(PIPELINES)}")
        self.setup, self.placement = setup, placement
        self.inputs = _open_inputs(setup.inputs)
        self.pipe = _load(setup, placement, local_files_only)
        self.run_record = _run_record(setup, placement)

    def estimate(self, settings: Mapping[str, Any], batch: int = 1) -> MemoryEstimate:
        """Memory that a call will need on the device; see `SanaPipeline.estimate`.

        Args:
            settings: as given to `make`.
            batch: pictures made at once.
        """
        known = ("height", "width", "guidance_scale", "pag_scale")
        chosen = {name: settings[name] for name in known if settings.get(name) is not None}
        if not chosen.keys() & {"height", "width"} and self.inputs:
            first = next(iter(self.inputs.values()))
            chosen["width"], chosen["height"] = (
                first[0] if isinstance(first, list) else first
            ).size
        return self.pipe.estimate(
            num_images=batch, offload=OFFLOAD_KINDS[self.placement.offload], **chosen
        )

    def make(
        self,
        prompts: Sequence[str],
        seeds: Sequence[int],
        settings: Mapping[str, Any] | None = None,
        *,
        on_step: StepReport | None = None,
        on_preview: PreviewReport | None = None,
        preview_every: int = 1,
    ) -> list[Made]:
        """Make one picture for each prompt and seed, in one batch.

        Args:
            prompts, seeds: one of each per picture.
            settings: further arguments of the pipeline's call, the same for all of them.
            on_step: called with steps done and in all.
            on_preview: called with steps done, steps in all and small pictures, every
                `preview_every` steps.

        Raises:
            ValueError: an argument that this pipeline does not take or cannot use.
            NonFiniteError: a stage gave NaN or infinity; there is no picture.
        """
        arguments: dict[str, Any] = {**self.inputs, **(settings or {})}
        check_arguments(self.setup.pipeline, arguments)
        if on_preview is not None:
            arguments |= {"preview": on_preview, "preview_every": preview_every}
        began = time.perf_counter()
        output = self.pipe(
            list(prompts),
            generator=list(seeds),
            callback_on_step_end=_step_callback(on_step),
            **arguments,
        )
        seconds = (time.perf_counter() - began) / len(seeds)
        run = {**self.run_record, "batch_size": len(seeds), "seconds": round(seconds, 3)}
        return [
            Made(picture, {**recipe, "run": run}, seconds, prompt, seed)
            for picture, recipe, prompt, seed in zip(
                output.images, output.recipe, prompts, seeds, strict=True
            )
        ]


def batches(request: PictureRequest) -> Iterator[tuple[list[str], list[int]]]:
    """Prompts and seeds of a request, `batch_size` pictures at a time."""
    pictures = request.pictures()
    for start in range(0, len(pictures), request.batch_size):
        part = pictures[start : start + request.batch_size]
        yield [prompt for prompt, _ in part], [seed for _, seed in part]


def _step_callback(report: StepReport | None) -> Callable[..., dict[str, Any]] | None:
    if report is None:
        return None

    def after_step(pipe: Any, step: int, timestep: Any, tensors: Any) -> dict[str, Any]:  # noqa: ARG001
        report(step + 1, pipe.num_timesteps)
        return {}

    return after_step


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


def _open_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Read the pictures that go in; a file is quicker to refuse than a model is to load."""
    from sana_like_pipelines.media import read_mask, read_picture

    return {
        name: read_mask(path)
        if name == "mask_image"
        else [read_picture(each) for each in path]
        if isinstance(path, list)
        else read_picture(path)
        for name, path in inputs.items()
    }


def _load(setup: Setup, placement: Placement, local_files_only: bool) -> Any:
    import sana_like_pipelines

    extra: dict[str, Any] = {}
    if setup.controlnets:
        nets = list(setup.controlnets)
        extra["controlnet"] = nets[0] if len(nets) == 1 else nets
    stays = placement.offload == "none"
    pipe = getattr(sana_like_pipelines, setup.pipeline).from_pretrained(
        setup.model,
        dtype=placement.dtype,
        device=placement.device if stays else None,
        local_files_only=local_files_only,
        **extra,
    )
    pipe.set_progress_bar_config(disable=True)
    if setup.scheduler is not None:
        pipe.scheduler = _scheduler(setup.scheduler, pipe.scheduler)
    _adapt(pipe, setup.adapters)
    _offload(pipe, placement)
    return pipe


def _scheduler(name: str, current: Any) -> Any:
    import sana_like

    shift = current.config.get("flow_shift", current.config.get("shift"))
    if shift is None:
        raise ValueError(
            f"this model is sampled by {type(current).__name__}, which --scheduler cannot replace"
        )
    if name == "flow-dpm":
        return sana_like.FlowDPMSolverScheduler(flow_shift=shift)
    kinds = {"flow-euler": "FlowEulerScheduler", "flow-heun": "FlowHeunScheduler"}
    return getattr(sana_like, kinds[name])(shift=shift)


def _adapt(pipe: Any, adapters: Sequence[Adapter]) -> None:
    names = []
    for index, adapter in enumerate(adapters):
        names.append(f"lora-{index}")
        pipe.load_lora_weights(adapter.path, adapter_name=names[-1])
    if names:
        pipe.set_adapters(names, [adapter.scale for adapter in adapters])


def _offload(pipe: Any, placement: Placement) -> None:
    if placement.offload == "model":
        pipe.enable_model_cpu_offload(device=placement.device)
    elif placement.offload == "sequential":
        pipe.enable_sequential_cpu_offload(device=placement.device)
    elif placement.offload == "group":
        pipe.enable_group_offload(placement.device)


def _run_record(setup: Setup, placement: Placement) -> dict[str, Any]:
    """What `rerun` needs beside the pipeline's own recipe."""
    import torch

    return {
        "weights": weights_of(setup),
        "controlnets": list(setup.controlnets),
        "adapters": [
            {"path": str(adapter.path), "scale": adapter.scale} for adapter in setup.adapters
        ],
        "sampler": setup.scheduler,
        "inputs": {name: _named(value) for name, value in setup.inputs.items()},
        "dtype": str(placement.dtype).removeprefix("torch."),
        "offload": placement.offload,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _named(value: str | list[str]) -> list[dict[str, str]]:
    paths = value if isinstance(value, list) else [value]
    return [{"path": path, "sha256": sha256_of(Path(path))} for path in paths]


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
