"""Text to image steered by control pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar

import torch
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from sana_like.text.encoding import TextEncoding
from sana_like.text.settings import TextSettings
from sana_like.transformers.offload import weights_present
from sana_like_pipelines.calls import Call
from sana_like_pipelines.conditioning import Conditioning
from sana_like_pipelines.flow import FlowPipeline
from sana_like_pipelines.guidance import Branch
from sana_like_pipelines.loading import Index, LoadOptions, load_component
from sana_like_pipelines.memory import Passes
from sana_like_pipelines.noise import Seeds
from sana_like_pipelines.outputs import SanaPipelineOutput
from sana_like_pipelines.pictures import Pictures, fit, for_prompts, read_pictures, same_size
from sana_like_pipelines.preview import LatentRGB
from sana_like_pipelines.recipe import picture_digest
from sana_like_pipelines.sources import PictureSources
from sana_like_pipelines.steps import Callback, Preview
from sana_like_pipelines.text import INSTRUCTION_OF_MODEL

Scale = float | Sequence[float]


@dataclass(frozen=True)
class Control:
    """One ControlNet in one call."""

    index: int
    """Place among the ControlNets."""
    latents: Tensor
    """Control latents `[B, Z, y, x]`."""
    scale: Scale
    start: float
    end: float

    def acts(self, step: int, steps: int) -> bool:
        """Whether the whole of this step lies between start and end."""
        return step / steps >= self.start and (step + 1) / steps <= self.end


class ControlNets(ModelMixin):
    """Several ControlNets as one component of a pipeline."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.nets)

    def __len__(self) -> int:
        return len(self.nets)

    def forward(self, requests: Mapping[int, Mapping[str, Any]]) -> list[tuple[Tensor, ...]]:
        """Residuals of some of the nets.

        Args:
            requests: number of the net to the arguments of its own `forward`.
        """
        return [
            self.nets[i](**arguments, return_dict=False)[0] for i, arguments in requests.items()
        ]


def add_residuals(parts: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...] | None:
    """Residuals of several nets, block by block; nets may have different numbers of blocks."""
    if not parts:
        return None
    sums = []
    for column in zip_longest(*parts):
        present = [residual for residual in column if residual is not None]
        sums.append(torch.stack(present).sum(dim=0) if len(present) > 1 else present[0])
    return tuple(sums)


class SanaControlNetPipeline(PictureSources, FlowPipeline):
    """Pictures from a prompt and control pictures, such as sketches.

    Source: ControlNet, arXiv 2302.05543, as released with SANA. `controlnet` is one
    `SanaControlNetModel` or a list of them.
    """

    component_names: ClassVar[tuple[str, ...]] = (
        "tokenizer",
        "text_encoder",
        "vae",
        "transformer",
        "controlnet",
        "scheduler",
    )
    published_class: ClassVar[str] = "SanaControlNetPipeline"
    loads: ClassVar[frozenset[str]] = frozenset(
        {"SanaControlNetPipeline", "SanaPipeline", "SanaPAGPipeline"}
    )
    model_cpu_offload_seq = "text_encoder->controlnet->transformer->vae"  # type: ignore[assignment]

    controlnet: Any

    def __init__(
        self,
        tokenizer: Any,
        text_encoder: Any,
        vae: Any,
        transformer: Any,
        controlnet: Any,
        scheduler: Any,
        text_settings: TextSettings | None = None,
        latent_rgb: LatentRGB | None = None,
    ) -> None:
        super().__init__(
            tokenizer, text_encoder, vae, transformer, scheduler, text_settings, latent_rgb
        )
        if isinstance(controlnet, (list, tuple)):
            controlnet = ControlNets(controlnet)
        self.register_modules(controlnet=controlnet)
        for net in self.controlnets:
            for key in ("in_channels", "caption_channels", "patch_size"):
                own, expected = net.config[key], transformer.config[key]
                if own != expected:
                    raise ValueError(
                        f"a ControlNet has {key}={own}, the transformer {expected}: they must agree"
                    )

    @property
    def controlnets(self) -> list[Any]:
        """The ControlNets, also where there is one."""
        several = isinstance(self.controlnet, ControlNets)
        return list(self.controlnet) if several else [self.controlnet]

    def _saved_components(self) -> dict[str, Any]:
        """The nets in folders of their own: `controlnet`, `controlnet_1`, ..."""
        parts = dict(self.components)
        first, *others = self.controlnets
        parts["controlnet"] = first
        return parts | {f"controlnet_{i}": net for i, net in enumerate(others, 1)}

    @classmethod
    def _load_components(
        cls, index: Index, options: LoadOptions, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        parts = super()._load_components(index, options, given)
        others = sorted(name for name in index.components if name.startswith("controlnet_"))
        if others and "controlnet" not in given:
            more = [load_component(name, index, options) for name in others]
            parts["controlnet"] = [parts["controlnet"], *more]
        return parts

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        negative_prompt: str | Sequence[str] | None = "",
        num_inference_steps: int = 20,
        timesteps: Sequence[float] | None = None,
        sigmas: Sequence[float] | None = None,
        guidance_scale: float = 4.5,
        control_image: Pictures | Sequence[Pictures] | None = None,
        controlnet_conditioning_scale: Scale | Sequence[Scale] = 1.0,
        num_images_per_prompt: int = 1,
        height: int | None = None,
        width: int | None = None,
        eta: float = 0.0,
        generator: Seeds = None,
        latents: Tensor | None = None,
        prompt_embeds: Tensor | TextEncoding | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt_embeds: Tensor | TextEncoding | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        clean_caption: bool = False,
        use_resolution_binning: bool = False,
        attention_kwargs: dict[str, Any] | None = None,
        callback_on_step_end: Callback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        max_sequence_length: int | None = None,
        complex_human_instruction: Sequence[str] | str | None = INSTRUCTION_OF_MODEL,
        *,
        control_guidance_start: float | Sequence[float] = 0.0,
        control_guidance_end: float | Sequence[float] = 1.0,
        guidance_interval: tuple[float, float] = (0.0, 1.0),
        guidance_passes: Passes = "auto",
        first_block_cache: float | None = None,
        pag_scale: float = 0.0,
        pag_adaptive_scale: float = 0.0,
        pag_applied_layers: int | str | Sequence[int | str] | None = None,
        cancel: Callable[[], bool] | None = None,
        preview: Preview | None = None,
        preview_every: int = 1,
    ) -> SanaPipelineOutput | tuple[Any]:
        """Make pictures. Arguments, results and errors as in `SanaPipeline`, and:

        Args:
            control_image: one picture for all prompts, or one for each. With several ControlNets, a
                list with one such item for each of them.
            controlnet_conditioning_scale: weight of the residuals: one number; or a list with one
                item for each ControlNet (an item may itself be a list with a number for each
                residual). 0 leaves a ControlNet out.
            height, width: `None`: the size of the control picture; others resize it to cover the
                size and cut the middle out.
            control_guidance_start, control_guidance_end: part of the steps, as fractions, in which
                the control acts: one number, or one for each ControlNet.
        """
        arguments = dict(locals())
        pictures = self._read_controls(arguments)
        call = self._begin(arguments)
        run = self._flow_run(call)
        settings = self._settings_per_net(arguments)
        fitted = self._fitted_controls(call, pictures)
        with self._working(call):
            with weights_present(self.controlnet):
                conditioning = self._condition(call, [self.transformer, *self.controlnets])
            controls = self._controls(call, fitted, settings)
            extras = self._steering(conditioning, controls)
            velocity = self._velocity(call, conditioning, run, extras)
            noise = self._start_noise(call)
            latents, _ = self._denoise(call, conditioning, run, noise, velocity)
            return self._deliver(call, latents)

    def _read_controls(self, arguments: dict[str, Any]) -> list[list[Tensor]]:
        """Pictures of every net; sets `height` and `width` where the call left them out."""
        given, count = arguments["control_image"], len(self.controlnets)
        if isinstance(self.controlnet, ControlNets):
            if not isinstance(given, (list, tuple)) or len(given) != count:
                found = len(given) if isinstance(given, (list, tuple)) else "no list"
                raise ValueError(
                    f"control_image must be a list with one item for each of {count} ControlNets, "
                    f"got {found}"
                )
            pictures = [read_pictures("control_image", item) for item in given]
        else:
            pictures = [read_pictures("control_image", given)]
        if arguments["height"] is None and arguments["width"] is None:
            everything = [picture for item in pictures for picture in item]
            arguments["height"], arguments["width"] = same_size("control_image", everything)
        return pictures

    def _settings_per_net(self, arguments: Mapping[str, Any]) -> list[tuple[Scale, float, float]]:
        """Scale, start and end of every net.

        Raises:
            ValueError: lists of another length than there are nets, or a start after its end.
        """
        count = len(self.controlnets)
        columns = []
        for name in (
            "controlnet_conditioning_scale",
            "control_guidance_start",
            "control_guidance_end",
        ):
            value = arguments[name]
            values = list(value) if isinstance(value, (list, tuple)) else [value] * count
            if len(values) != count:
                raise ValueError(
                    f"{name} has {len(values)} items for {count} ControlNets: give one number, or "
                    f"{count} items"
                )
            columns.append(values)
        rows = list(zip(*columns, strict=True))
        for _, start, end in rows:
            if not 0 <= start <= end <= 1:
                raise ValueError(
                    f"control_guidance_start={start} and control_guidance_end={end} must hold "
                    "0 <= start <= end <= 1, as fractions of the steps"
                )
        return rows

    def _fitted_controls(self, call: Call, pictures: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Controls of every net `[P, 3, height, width]` in [-1, 1]; digests go to the recipe."""
        size, fitted, digests = call.size, [], []
        for item in pictures:
            sized = [fit(picture, size.height, size.width) for picture in item]
            digests.append([picture_digest(picture) for picture in sized])
            fitted.append(for_prompts("control_image", sized, call.inputs.count))
        call.context["inputs"] = {"control_image": digests}
        return fitted

    def _controls(
        self,
        call: Call,
        pictures: Sequence[Tensor],
        settings: Sequence[tuple[Scale, float, float]],
    ) -> list[Control]:
        """Encode the controls, each picture once."""
        controls = []
        for index, (picture, (scale, start, end)) in enumerate(
            zip(pictures, settings, strict=True)
        ):
            if scale == 0:
                continue
            latents = self._encode_pictures(call, picture)
            latents = latents.repeat_interleave(call.inputs.per_prompt, dim=0)
            controls.append(Control(index, latents, scale, start, end))
        return controls

    def _steering(
        self, conditioning: Conditioning, controls: Sequence[Control]
    ) -> Callable[[Tensor, int, int], Mapping[str, Any]]:
        """What makes the transformer's residuals at a step."""

        def extras(timestep: Tensor, step: int, steps: int) -> Mapping[str, Any]:
            acting = [control for control in controls if control.acts(step, steps)]

            def residuals(
                latents: Tensor, branches: tuple[Branch, ...]
            ) -> tuple[Tensor, ...] | None:
                requests = {
                    control.index: {
                        "hidden_states": latents.to(self.controlnet.dtype),
                        "encoder_hidden_states": conditioning[1 + control.index][branches],
                        "timestep": timestep,
                        "controlnet_cond": control.latents.repeat(len(branches), 1, 1, 1),
                        "conditioning_scale": control.scale,
                    }
                    for control in acting
                }
                return add_residuals(self._run_nets(requests))

            return {"controlnet_block_samples": residuals}

        return extras

    def _run_nets(self, requests: Mapping[int, Mapping[str, Any]]) -> list[tuple[Tensor, ...]]:
        if isinstance(self.controlnet, ControlNets):
            return self.controlnet(requests) if requests else []
        return [
            self.controlnet(**arguments, return_dict=False)[0] for arguments in requests.values()
        ]
