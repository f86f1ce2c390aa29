"""SCM: few-step sampling of a TrigFlow consistency model (SANA-Sprint)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from diffusers.configuration_utils import register_to_config
from torch import Generator, Tensor

from sana_like.schedulers.base import Sampler, at_least_float32, check_descending, check_same_shape
from sana_like.schedulers.flow import check_num_steps
from sana_like.schedulers.flow_scheduler import SamplerOutput, check_choice
from sana_like.schedulers.noise import draw_noise
from sana_like.schedulers.trigflow import (
    MAX_TIME,
    PUBLISHED_INTERMEDIATE,
    trigflow_add_noise,
    trigflow_times,
    trigflow_to_x0,
)


class SCMScheduler(Sampler):
    """Every step predicts the clean sample and adds fresh noise for the next, lower time.

    State units: data times `sigma_data`; start from `sigma_data * N(0, 1)` and divide the result
    by `sigma_data` before decoding. The network is wrapped by `trigflow.trigflow_model_input` and
    `trigflow.trigflow_output`. The configuration is that of diffusers' `SCMScheduler`.

    Args:
        num_train_timesteps: upper limit of the step count.
        prediction_type: `trigflow`.
        sigma_data: standard deviation of the data in state units.

    Attributes:
        timesteps: trigonometric times, fp32, one more than there are steps; the last is 0.

    Raises:
        ValueError: another prediction type, or a `sigma_data` that is not positive.

    Source: SANA-Sprint, Chen et al. 2025, section 3.
    """

    published_class_name: ClassVar[str] = "SCMScheduler"

    @register_to_config
    def __init__(
        self,
        num_train_timesteps: int = 1000,
        prediction_type: str = "trigflow",
        sigma_data: float = 0.5,
    ) -> None:
        check_choice("prediction_type", prediction_type, ("trigflow",))
        if not (sigma_data > 0 and math.isfinite(sigma_data)):
            raise ValueError(f"sigma_data is {sigma_data!r}; it must be positive and finite")
        check_num_steps(num_train_timesteps, num_train_timesteps)
        self._sigma_data = sigma_data
        self._max_steps = num_train_timesteps
        self.num_inference_steps = None
        self.timesteps = torch.zeros(1)
        self._restart()

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: torch.device | str | None = None,
        *,
        timesteps: Sequence[float] | Tensor | None = None,
        max_timesteps: float = MAX_TIME,
        intermediate_timesteps: float | None = PUBLISHED_INTERMEDIATE,
        strength: float = 1.0,
    ) -> None:
        """Choose the times of a run and begin it anew.

        Args:
            num_inference_steps: number of steps, from 1.
            device: where `timesteps` are put; default CPU.
            timesteps: times of your own in (0, 1.5708], instead of a step count.
            max_timesteps: first time of a run given by its step count.
            intermediate_timesteps: second time of a two-step run; other counts, and `None`, space
                the times evenly.
            strength: in (0, 1], for image-to-image: all times are multiplied by it.

        Raises:
            ValueError: not exactly one of `num_inference_steps` and `timesteps`, a count outside
                1..num_train_timesteps, a strength outside (0, 1], or times that do not fall
                strictly from at most 1.5708.
        """
        if (num_inference_steps is None) == (timesteps is None):
            raise ValueError("give exactly one of num_inference_steps and timesteps")
        if timesteps is not None:
            times = [float(time) for time in timesteps]
        else:
            assert num_inference_steps is not None
            check_num_steps(num_inference_steps, self._max_steps)
            times = trigflow_times(
                num_inference_steps,
                max_time=max_timesteps,
                intermediate=intermediate_timesteps,
                strength=strength,
            )
        if times and times[-1] == 0:
            times.pop()
        check_descending(times, "timesteps", MAX_TIME)
        self.num_inference_steps = len(times)
        self.timesteps = torch.tensor([*times, 0.0], dtype=torch.float32, device=device or "cpu")
        self._times: list[float] = self.timesteps.tolist()
        self._restart()

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        generator: Generator | Sequence[Generator] | None = None,
        return_dict: bool = True,
    ) -> SamplerOutput | tuple[Tensor, Tensor]:
        """Predict the clean sample and noise it to the next time.

        Noise is drawn in every step, the last included where its weight is 0, in diffusers' order;
        see `noise.draw_noise` for generators.

        Args:
            model_output: `[B, ...]` TrigFlow prediction `F` in state units (times `sigma_data`).
            timestep: element of `timesteps`; only read where a run begins without
                `set_begin_index`.
            sample: `[B, ...]` state at this time.
            generator: one, or one per sample.
            return_dict: an object, or the tuple `(prev_sample, pred_original_sample)`.

        The arithmetic is fp32 (fp64 where the state is). Values that are not finite are passed on.

        Raises:
            ValueError: unequal shapes, a wrong number of generators, no schedule, or a schedule
                that is finished.
        """
        check_same_shape(model_output, sample)
        index = self._next_index(timestep)
        x, prediction = at_least_float32(sample), at_least_float32(model_output)
        clean = trigflow_to_x0(x, prediction, self._times[index])
        noise = draw_noise(x.shape, generator, device=x.device, dtype=x.dtype)
        moved = trigflow_add_noise(clean, noise, self._times[index + 1], self._sigma_data)
        self._step_index = index + 1
        moved = moved.to(sample.dtype)
        return SamplerOutput(moved, clean) if return_dict else (moved, clean)

    def scale_noise(self, sample: Tensor, timestep: float | Tensor, noise: Tensor) -> Tensor:
        """Noise a clean sample to a time: `cos(t) sample + sin(t) sigma_data noise`.

        Args:
            sample: `[B, ...]` clean latents in state units (times `sigma_data`).
            timestep: one time for the whole batch.
            noise: unit normal, shape of `sample`.

        Returns:
            The state, in the dtype of `sample`.

        Raises:
            ValueError: unequal shapes, several times, or one outside [0, 1.5708].
        """
        check_same_shape(noise, sample)
        times = torch.as_tensor(timestep).reshape(-1).tolist()
        if len(times) != 1 or not 0 <= times[0] <= MAX_TIME + 1e-6:
            raise ValueError(
                f"timestep is {times}; give one trigonometric time from 0 to {MAX_TIME} for the "
                "whole batch"
            )
        time = float(times[0])
        wide, wide_noise = at_least_float32(sample), at_least_float32(noise)
        noisy = trigflow_add_noise(wide, wide_noise, time, self._sigma_data)
        return noisy.to(sample.dtype)

    def add_noise(self, original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """`scale_noise` with diffusers' other order of arguments."""
        return self.scale_noise(original_samples, timesteps, noise)

    def _num_evaluations(self) -> int:
        return len(self.timesteps) - 1
