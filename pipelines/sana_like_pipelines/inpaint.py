"""Inpainting: part of a picture is painted anew, the rest of it is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sana_like.schedulers.flow import add_noise
from sana_like.text.encoding import TextEncoding
from sana_like_pipelines.calls import Call
from sana_like_pipelines.img2img import FromPicture
from sana_like_pipelines.memory import Passes
from sana_like_pipelines.noise import Seeds
from sana_like_pipelines.outputs import SanaPipelineOutput
from sana_like_pipelines.pictures import Pictures, fit, for_prompts, read_pictures
from sana_like_pipelines.recipe import picture_digest
from sana_like_pipelines.steps import Callback, Preview, SchedulerRun
from sana_like_pipelines.text import INSTRUCTION_OF_MODEL


class SanaInpaintPipeline(FromPicture):
    """Pictures from a prompt, a picture, and a mask of what shall change.

    Latents outside the mask are replaced by the source's, noised to the present level, after every
    step (latent blending, arXiv 2206.02779); no weights of its own are needed.
    """

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        image: Pictures | None = None,
        mask_image: Pictures | None = None,
        negative_prompt: str | Sequence[str] | None = "",
        strength: float = 1.0,
        num_inference_steps: int = 20,
        timesteps: Sequence[float] | None = None,
        sigmas: Sequence[float] | None = None,
        guidance_scale: float = 4.5,
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
        keep_unmasked: bool = True,
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
        """Make pictures. Arguments, results and errors as in `SanaImg2ImgPipeline`, and:

        Args:
            mask_image: one mask for all prompts, or one for each, of the picture's size: white is
                painted anew, black is kept, grey blends.
            strength: 1: what is under the mask is forgotten; less keeps some of it.
            keep_unmasked: put the source's own pixels back at the end, so that they are exactly as
                they were where the mask is black. `False` leaves what the autoencoder makes of
                them, which has no seams.
        """
        arguments = dict(locals())
        pictures, masks = self._source(arguments), read_pictures("mask_image", mask_image, 1)
        call = self._begin(arguments)
        run = self._strength_run(call)
        source, mask = self._fitted(call, pictures), self._fitted_masks(call, pictures, masks)
        with self._working(call):
            conditioning = self._condition(call, [self.transformer])
            times = call.inputs.per_prompt
            clean = self._encode_pictures(call, source).repeat_interleave(times, dim=0)
            noise = self._start_noise(call)
            blend = self._blending(call, run, clean, noise, mask.repeat_interleave(times, dim=0))
            start = run.scheduler.scale_noise(clean, run.timesteps[0], noise)
            velocity = self._velocity(call, conditioning, run)
            latents, _ = self._denoise(call, conditioning, run, start, velocity, blend)
            paste = _pasting(source, mask, times) if keep_unmasked else None
            return self._deliver(call, latents, paste)

    def _fitted_masks(
        self, call: Call, pictures: Sequence[Tensor], masks: Sequence[Tensor]
    ) -> Tensor:
        """Masks as `[P, 1, height, width]` in [0, 1].

        Raises:
            ValueError: a mask has not its picture's size, or there are too many or too few.
        """
        if len(pictures) == 1:
            pictures = [pictures[0]] * len(masks)
        pairs = masks if len(masks) > 1 else [masks[0]] * len(pictures)
        for picture, mask in zip(pictures, pairs, strict=False):
            if picture.shape[-2:] != mask.shape[-2:]:
                raise ValueError(
                    f"the mask is {mask.shape[-1]}x{mask.shape[-2]}, its picture "
                    f"{picture.shape[-1]}x{picture.shape[-2]}: give a mask of the picture's size"
                )
        sized = [fit(mask, call.size.height, call.size.width) for mask in masks]
        call.context["inputs"]["mask_image"] = [picture_digest(mask * 2 - 1) for mask in sized]
        return for_prompts("mask_image", sized, call.inputs.count)

    def _blending(
        self, call: Call, run: SchedulerRun, clean: Tensor, noise: Tensor, mask: Tensor
    ) -> Callable[[Tensor, int], Tensor]:
        """What puts the source back outside the mask after a step.

        A cell of the latent is free where any pixel of it is: a smaller mask would freeze the rim.
        """
        ratio = self.vae.spatial_compression_ratio
        free = F.max_pool2d(call.size.pad(mask), ratio).to(clean) > 0  # [B, 1, y, x]
        levels = run.scheduler.sigmas.tolist()

        def blend(latents: Tensor, step: int) -> Tensor:
            return torch.where(free, latents, add_noise(clean, noise, levels[step + 1]))

        return blend


def _pasting(source: Tensor, mask: Tensor, times: int) -> Callable[[Tensor], Tensor]:
    """What puts the source's pixels back into the pictures `[B, 3, height, width]`."""

    def paste(pictures: Tensor) -> Tensor:
        kept = source.to(pictures).repeat_interleave(times, dim=0)
        weight = mask.to(pictures).repeat_interleave(times, dim=0)
        blended = kept + weight * (pictures.clamp(-1, 1) - kept)
        return torch.where(weight == 0, kept, blended)

    return paste
