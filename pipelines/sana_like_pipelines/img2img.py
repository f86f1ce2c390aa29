"""Image to image: a picture is noised to a level and painted anew from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sana_like.schedulers.flow import make_sigmas, shift_sigma, unshift_sigma
from sana_like.text.encoding import TextEncoding
from sana_like_pipelines.calls import Call
from sana_like_pipelines.flow import FlowPipeline
from sana_like_pipelines.memory import Passes
from sana_like_pipelines.noise import Seeds
from sana_like_pipelines.outputs import SanaPipelineOutput
from sana_like_pipelines.pictures import Pictures
from sana_like_pipelines.sources import PictureSources
from sana_like_pipelines.steps import (
    Callback,
    Preview,
    SchedulerRun,
    check_strength,
    steps_or_levels,
)
from sana_like_pipelines.text import INSTRUCTION_OF_MODEL


class FromPicture(PictureSources, FlowPipeline):
    """Base of pipelines that begin in the middle of the run, from a picture."""

    def _strength_run(self, call: Call) -> SchedulerRun:
        """The part of a run that `strength` leaves.

        The levels are those of a run of `strength * num_inference_steps` steps, rounded and at
        least one, squeezed below `strength` before the shift. So the start is exact at any number
        of steps, and every strength below 1 keeps some of the picture.

        Raises:
            ValueError: a strength outside (0, 1], or a sampler that is none of this package's.
        """
        self._check_fit()
        if not hasattr(self.scheduler, "fresh"):
            raise ValueError(
                f"{type(self.scheduler).__name__} cannot start from a picture exactly; use a "
                "scheduler of sana_like.schedulers, such as from_published(scheduler.config)"
            )
        a = call.arguments
        strength = check_strength(a["strength"])
        choice = steps_or_levels(a["num_inference_steps"], a["timesteps"], a["sigmas"])
        if "num_inference_steps" in choice and strength < 1:
            config = self.scheduler.config
            shift = config.get("flow_shift", config.get("shift", 1.0))
            steps = max(round(strength * choice["num_inference_steps"]), 1)
            grid = make_sigmas(
                steps,
                shift=shift,
                grid=config.sigma_grid,
                num_train_timesteps=config.num_train_timesteps,
            )
            levels = shift_sigma(strength * unshift_sigma(grid, shift), shift)
            choice = {"sigmas": levels[:-1].tolist()}
        return SchedulerRun(self.scheduler, call.noise, call.device, choice)


class SanaImg2ImgPipeline(FromPicture):
    """Pictures from a prompt and a picture."""

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        image: Pictures | None = None,
        negative_prompt: str | Sequence[str] | None = "",
        strength: float = 0.6,
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
            image: one picture for all prompts, or one for each; see `pictures.Pictures`.
            strength: how much is painted anew, above 0 and at most 1: the level, before the shift,
                to which the picture is noised. `strength * num_inference_steps` steps are run, at
                least one. 1 is text to image.
            height, width: `None`: the size of the picture; others resize it to cover the size and
                cut the middle out.
            latents: `[B, Z, y, x]`, the noise that is added, instead of drawn noise.
            timesteps, sigmas: levels of your own; the picture is noised to the first of them and
                `strength` is not read.
        """
        arguments = dict(locals())
        pictures = self._source(arguments)
        call = self._begin(arguments)
        run = self._strength_run(call)
        source = self._fitted(call, pictures)
        with self._working(call):
            conditioning = self._condition(call, [self.transformer])
            clean = self._encode_pictures(call, source)
            clean = clean.repeat_interleave(call.inputs.per_prompt, dim=0)
            start = run.scheduler.scale_noise(clean, run.timesteps[0], self._start_noise(call))
            velocity = self._velocity(call, conditioning, run)
            latents, _ = self._denoise(call, conditioning, run, start, velocity)
            return self._deliver(call, latents)
