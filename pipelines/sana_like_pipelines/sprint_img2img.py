"""Image to image in one to four steps with SANA-Sprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from sana_like.schedulers.trigflow import MAX_TIME, PUBLISHED_INTERMEDIATE
from sana_like.text.encoding import TextEncoding
from sana_like_pipelines.noise import Seeds
from sana_like_pipelines.outputs import SanaPipelineOutput
from sana_like_pipelines.pictures import Pictures
from sana_like_pipelines.sources import PictureSources
from sana_like_pipelines.sprint import SanaSprintPipeline
from sana_like_pipelines.steps import Callback, Preview, check_strength
from sana_like_pipelines.text import INSTRUCTION_OF_MODEL


class SanaSprintImg2ImgPipeline(PictureSources, SanaSprintPipeline):
    """Pictures from a prompt and a picture by a consistency model.

    Source: SANA-Sprint, arXiv 2503.09641. All times of the run are multiplied by `strength`, so
    that every strength below 1 keeps some of the picture at any number of steps.
    """

    published_class: ClassVar[str] = "SanaSprintImg2ImgPipeline"

    @torch.no_grad()
    def __call__(  # type: ignore[override]
        self,
        prompt: str | Sequence[str] | None = None,
        num_inference_steps: int = 2,
        timesteps: Sequence[float] | None = None,
        max_timesteps: float = MAX_TIME,
        intermediate_timesteps: float | None = PUBLISHED_INTERMEDIATE,
        guidance_scale: float = 4.5,
        image: Pictures | None = None,
        strength: float = 0.6,
        num_images_per_prompt: int = 1,
        height: int | None = None,
        width: int | None = None,
        eta: float = 0.0,
        generator: Seeds = None,
        latents: Tensor | None = None,
        prompt_embeds: Tensor | TextEncoding | None = None,
        prompt_attention_mask: Tensor | None = None,
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
        cancel: Callable[[], bool] | None = None,
        preview: Preview | None = None,
        preview_every: int = 1,
    ) -> SanaPipelineOutput | tuple[Any]:
        """Make pictures. Arguments, results and errors as in `SanaSprintPipeline`, and:

        Args:
            image: one picture for all prompts, or one for each; see `pictures.Pictures`.
            strength: how much is painted anew, above 0 and at most 1, which is text to image.
            height, width: `None`: the size of the picture; others resize it to cover the size and
                cut the middle out.
            latents: `[B, Z, y, x]`, unit normal, the noise that is added, instead of drawn noise.
            timesteps: times of your own; the picture is noised to the first of them and `strength`
                is not read.
        """
        arguments = dict(locals())
        pictures = self._source(arguments)
        check_strength(strength)
        call = self._begin(arguments)
        run = self._trigflow_run(call)
        source = self._fitted(call, pictures)
        with self._working(call):
            conditioning = self._condition(call, [self.transformer])
            clean = self._encode_pictures(call, source) * self._sigma_data
            clean = clean.repeat_interleave(call.inputs.per_prompt, dim=0)
            start = run.scheduler.scale_noise(clean, run.timesteps[0], self._start_noise(call))
            predict = self._prediction(call, conditioning)
            latents, predicted = self._denoise(call, conditioning, run, start, predict)
            result = predicted if self._interrupt else latents
            return self._deliver(call, result / self._sigma_data)

    def _shortened(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if not hasattr(self.scheduler, "fresh"):
            raise ValueError(
                f"{type(self.scheduler).__name__} cannot start from a picture exactly; use "
                "sana_like.SCMScheduler"
            )
        return {"strength": arguments["strength"]}
