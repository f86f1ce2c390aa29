"""What the pipelines of rectified-flow models share: the sampler and the guided velocity."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sana_like_pipelines.base import SanaBase
from sana_like_pipelines.calls import Call
from sana_like_pipelines.conditioning import Conditioning
from sana_like_pipelines.steps import SchedulerRun, steps_or_levels

Extras = Callable[[Tensor, int, int], Mapping[str, Any]]
"""Further arguments of the transformer for (timestep, step, steps)."""


class FlowPipeline(SanaBase):
    """Base of pipelines whose transformer predicts the velocity of a rectified flow."""

    def _check_fit(self) -> None:
        """Refuse weights and samplers of another kind of model.

        Raises:
            ValueError: an embedded guidance (Sprint), or a sampler that is not for velocities.
        """
        if self.transformer.config.guidance_embeds:
            raise ValueError(
                "this transformer has an embedded guidance and a TrigFlow sampler's meaning of "
                "time (SANA-Sprint): use SanaSprintPipeline"
            )
        kind = self.scheduler.config.get("prediction_type", "flow_prediction")
        if kind != "flow_prediction":
            raise ValueError(
                f"{type(self.scheduler).__name__} is for prediction_type={kind!r}, these weights "
                "predict the velocity of a flow: use FlowDPMSolverScheduler, FlowEulerScheduler or "
                "FlowHeunScheduler"
            )

    def _flow_run(self, call: Call) -> SchedulerRun:
        """The sampler of a call that starts from noise."""
        self._check_fit()
        a = call.arguments
        choice = steps_or_levels(a["num_inference_steps"], a["timesteps"], a["sigmas"])
        return SchedulerRun(self.scheduler, call.noise, call.device, choice)

    def _velocity(
        self,
        call: Call,
        conditioning: Conditioning,
        run: SchedulerRun,
        extras: Extras | None = None,
    ) -> Callable[[Tensor, Tensor, int], Tensor]:
        """The guided velocity for (latents, timestep, step)."""
        scale, steps = self.transformer.config.timestep_scale, len(run.timesteps)

        def predict(latents: Tensor, timestep: Tensor, step: int) -> Tensor:
            told = timestep * scale
            more = extras(told, step, steps) if extras is not None else {}
            network = self._network(call, conditioning, told, **more)
            # Reading the time back would make an accelerator wait; only an adaptive scale needs it.
            time = float(timestep) if call.guidance.pag_adaptive_scale else 1000.0
            return call.guidance.predict(network, latents, step=step, steps=steps, time=time)

        return predict
