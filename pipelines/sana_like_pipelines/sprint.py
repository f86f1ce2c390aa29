"""Text to image in one to four steps with SANA-Sprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from sana_like.schedulers.trigflow import (
    MAX_TIME,
    PUBLISHED_INTERMEDIATE,
    trigflow_model_input,
    trigflow_output,
)
from sana_like.text.encoding import TextEncoding
from sana_like_pipelines.base import SanaBase
from sana_like_pipelines.calls import Call
from sana_like_pipelines.conditioning import Conditioning
from sana_like_pipelines.guidance import Guidance
from sana_like_pipelines.noise import Seeds
from sana_like_pipelines.outputs import SanaPipelineOutput
from sana_like_pipelines.steps import Callback, Preview, SchedulerRun, steps_or_levels
from sana_like_pipelines.text import INSTRUCTION_OF_MODEL


class SanaSprintPipeline(SanaBase):
    """Pictures from a prompt by a consistency model; the guidance is an input of the network.

    Source: SANA-Sprint, arXiv 2503.09641.
    """

    published_class: ClassVar[str] = "SanaSprintPipeline"
    loads: ClassVar[frozenset[str]] = frozenset({"SanaSprintPipeline", "SanaSprintImg2ImgPipeline"})
    takes_negative: ClassVar[bool] = False

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        num_inference_steps: int = 2,
        timesteps: Sequence[float] | None = None,
        max_timesteps: float = MAX_TIME,
        intermediate_timesteps: float | None = PUBLISHED_INTERMEDIATE,
        guidance_scale: float = 4.5,
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
        """Make pictures. Arguments, results and errors as in `SanaPipeline`, except:

        Args:
            num_inference_steps: from 1; 1 to 4 are what the weights are made for.
            timesteps: trigonometric times in (0, 1.5708] instead of a count, highest first.
            max_timesteps: first time of a run given by its count.
            intermediate_timesteps: second time of a two-step run; other counts, and `None`, space
                the times evenly.
            guidance_scale: told to the network, so it costs nothing; there is no negative prompt.
            latents: `[B, Z, y, x]`, unit normal.
        """
        call = self._begin(dict(locals()))
        run = self._trigflow_run(call)
        with self._working(call):
            conditioning = self._condition(call, [self.transformer])
            start = self._start_noise(call) * self._sigma_data
            predict = self._prediction(call, conditioning)
            latents, clean = self._denoise(call, conditioning, run, start, predict)
            result = clean if self._interrupt else latents
            return self._deliver(call, result / self._sigma_data)

    @property
    def _sigma_data(self) -> float:
        return float(self.scheduler.config.sigma_data)

    def _guidance(self, arguments: Mapping[str, Any]) -> Guidance:
        return Guidance(scale=arguments["guidance_scale"])

    def _trigflow_run(self, call: Call) -> SchedulerRun:
        """The sampler of a call.

        Raises:
            ValueError: weights or sampler of another kind of model.
        """
        if not self.transformer.config.guidance_embeds:
            raise ValueError(
                "this transformer has no embedded guidance, so it is no SANA-Sprint: use "
                "SanaPipeline"
            )
        if self.scheduler.config.get("prediction_type") != "trigflow":
            raise ValueError(
                f"{type(self.scheduler).__name__} is no TrigFlow sampler: use SCMScheduler"
            )
        a = call.arguments
        choice = steps_or_levels(a["num_inference_steps"], a["timesteps"])
        if "timesteps" not in choice:
            choice["max_timesteps"] = a["max_timesteps"]
            choice["intermediate_timesteps"] = a["intermediate_timesteps"]
            choice |= self._shortened(a)
        run = SchedulerRun(self.scheduler, call.noise, call.device, choice)
        run.timesteps = run.timesteps[:-1]  # the last is the end, not an evaluation
        return run

    def _shortened(self, arguments: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Further arguments of `set_timesteps` for a run that does not begin with noise."""
        return {}

    def _prediction(
        self, call: Call, conditioning: Conditioning
    ) -> Callable[[Tensor, Tensor, int], Tensor]:
        """TrigFlow prediction in state units for (latents, time, step)."""
        sigma_data = self._sigma_data
        embeds_scale = self.transformer.config.guidance_embeds_scale

        def predict(latents: Tensor, time: Tensor, step: int) -> Tensor:  # noqa: ARG001
            model_input, tau = trigflow_model_input(latents, time, sigma_data)
            # Made on the device: CUDA graphs can copy nothing from the host.
            scale = call.guidance.scale * embeds_scale
            guidance = torch.full((), scale, dtype=torch.float32, device=latents.device)
            network = self._network(call, conditioning, tau, guidance=guidance)
            velocity = network(model_input, ("prompt",)).float()
            return trigflow_output(model_input, velocity, tau) * sigma_data

        return predict

    def _preview(self, call: Call, done: int, total: int, clean: Tensor) -> None:
        super()._preview(call, done, total, clean / self._sigma_data)
