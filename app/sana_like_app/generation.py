"""From a request to pictures: a pipeline on a device, and calls to it that can be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sana_like.zoo.fetch import sha256_of
from sana_like_app.request import Adapter
from sana_like_app.setup import (
    PIPELINES,
    VIDEO_PIPELINES,
    Placement,
    Setup,
    check_arguments,
    weights_of,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from sana_like_pipelines.memory import MemoryEstimate

OFFLOAD_KINDS = {"none": None, "model": "model", "sequential": "layers", "group": "layers"}
StepReport = Callable[[int, int], None]
PreviewReport = Callable[[int, int, "list[Image]"], None]


@dataclass(frozen=True)
class Made:
    """One picture, its recipe, and the seconds that it took."""

    picture: Image
    recipe: dict[str, Any]
    seconds: float
    prompt: str
    seed: int


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
        known = (*PIPELINES, *VIDEO_PIPELINES)
        if setup.pipeline not in known:
            raise ValueError(f"unknown pipeline {setup.pipeline!r}; known: {', '.join(known)}")
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
        known = (
            "height", "width", "guidance_scale", "pag_scale", "guidance_passes", "first_block_cache"
        )  # fmt: skip
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
            callback_on_step_end=step_callback(on_step),
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


def step_callback(report: StepReport | None) -> Callable[..., dict[str, Any]] | None:
    """What a pipeline calls after a step, to tell `report` how many are done."""
    if report is None:
        return None

    def after_step(pipe: Any, step: int, timestep: Any, tensors: Any) -> dict[str, Any]:  # noqa: ARG001
        report(step + 1, pipe.num_timesteps)
        return {}

    return after_step


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
    if setup.speed.chosen():
        pipe.speed_up(**setup.speed.chosen())
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
    kinds = {
        "flow-dpm": "FlowDPMSolverScheduler",
        "flow-euler": "FlowEulerScheduler",
        "flow-heun": "FlowHeunScheduler",
    }
    return getattr(sana_like, kinds[name]).from_config(current.published_config())


def _adapt(pipe: Any, adapters: Sequence[Adapter]) -> None:
    names = []
    for index, adapter in enumerate(adapters):
        names.append(f"lora-{index}")
        # A path that is not there must not be taken for a hub id, least of all from a recipe.
        pipe.load_lora_weights(adapter.path, adapter_name=names[-1], local_files_only=True)
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
