"""Image to video with SANA-Video: the picture is the first frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from sana_like.schedulers.chunked import hold_frames
from sana_like.text.encoding import TextEncoding
from sana_like_pipelines.fitting import Fit
from sana_like_pipelines.given_frame import FromFirstFrame
from sana_like_pipelines.memory import Passes
from sana_like_pipelines.noise import Seeds
from sana_like_pipelines.outputs import SanaVideoPipelineOutput
from sana_like_pipelines.pictures import Pictures
from sana_like_pipelines.steps import Callback, Preview
from sana_like_pipelines.text import INSTRUCTION_OF_MODEL


class SanaImageToVideoPipeline(FromFirstFrame):
    """Clips from a prompt and the picture that they begin with."""

    published_class: ClassVar[str] = "SanaImageToVideoPipeline"

    @torch.no_grad()
    def __call__(
        self,
        image: Pictures | None = None,
        prompt: str | Sequence[str] | None = None,
        negative_prompt: str | Sequence[str] | None = "",
        num_inference_steps: int = 50,
        timesteps: Sequence[float] | None = None,
        sigmas: Sequence[float] | None = None,
        guidance_scale: float = 6.0,
        num_videos_per_prompt: int = 1,
        height: int | None = None,
        width: int | None = None,
        frames: int | None = None,
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
        image_fit: Fit = "cut",
        guidance_interval: tuple[float, float] = (0.0, 1.0),
        guidance_passes: Passes = "auto",
        stg_scale: float = 0.0,
        stg_applied_layers: int | str | Sequence[int | str] | None = None,
        stg_interval: tuple[float, float] = (0.0, 1.0),
        apg_eta: float | None = None,
        apg_norm_threshold: float = 0.0,
        apg_momentum: float = 0.0,
        first_block_cache: float | None = None,
        cancel: Callable[[], bool] | None = None,
        preview: Preview | None = None,
        preview_every: int = 1,
    ) -> SanaVideoPipelineOutput | tuple[Any]:
        """Make clips. Arguments, results and errors as in `SanaVideoPipeline`, and:

        Args:
            image: one picture for all prompts, or one for each; see `pictures.Pictures`.
            height, width: `None` for both: about the trained number of pixels in the shape of the
                picture.
            latents: `[B, Z, t, y, x]`, start noise; its first latent frame is replaced.
            image_fit: where the picture has another shape: `"cut"` covers the size and keeps the
                middle, `"pad"` shows all of it and repeats its edges. It is never squeezed; the
                recipe says what was done.
        """
        arguments = dict(locals())
        pictures = self._read_first(arguments)
        call = self._begin(arguments)
        run = self._flow_run(call)
        first = self._fit_first(call, pictures, image_fit)
        with self._working(call):
            conditioning = self._condition(call, [self.transformer])
            clean = self._encode_first(call, first)
            velocity = self._clip_velocity(call, conditioning, run, clean_frames=1)
            noise = hold_frames(self._start_noise(call), clean)
            latents, _ = self._denoise(
                call, conditioning, run, noise, velocity, lambda x, _: hold_frames(x, clean)
            )
            return self._deliver_clips(call, latents)
