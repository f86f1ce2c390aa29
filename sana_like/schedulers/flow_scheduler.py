"""Base of the rectified-flow samplers: the grid of levels and the forward process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from diffusers.utils import BaseOutput
from numpy.typing import NDArray
from torch import Generator, Tensor

from sana_like.schedulers.base import Sampler, at_least_float32, check_descending, check_same_shape
from sana_like.schedulers.flow import SigmaGrid, add_noise, make_sigmas


@dataclass
class SamplerOutput(BaseOutput):
    """Result of one `step`.

    Attributes:
        prev_sample: `[B, ...]` the state at the next level, in the dtype of the given state.
        pred_original_sample: `[B, ...]` the clean sample predicted at this level, fp32 or wider.
    """

    prev_sample: Tensor
    pred_original_sample: Tensor


class FlowScheduler(Sampler):
    """A run through falling noise levels `sigma`; subclasses say how one step is made.

    Attributes:
        timesteps: what the network is told, one per evaluation: `num_train_timesteps * sigma` in
            fp32, or that truncated to int64 with `truncate_timesteps`. On the device asked for.
        sigmas: fp32 on the CPU; `sigmas[i]` is the level of the state before evaluation `i`, and
            `sigmas[i + 1]` after it; the last is 0.
    """

    published_class_name: ClassVar[str]
    sigmas: Tensor

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: torch.device | str | None = None,
        *,
        timesteps: Sequence[float] | Tensor | None = None,
        sigmas: Sequence[float] | Tensor | None = None,
    ) -> None:
        """Choose the levels of a run and begin it anew; calling it twice changes nothing.

        Args:
            num_inference_steps: number of steps, from 1; the levels come from the configured grid
                and shift.
            device: where `timesteps` are put; default CPU.
            timesteps: levels of your own, as the network is told them (at most
                `num_train_timesteps`). They are final: no shift is applied.
            sigmas: levels of your own in (0, 1], likewise final.

        Raises:
            ValueError: none or several of the three given, a count outside
                1..num_train_timesteps, or levels that do not fall strictly.
        """
        grid = self._levels(num_inference_steps, timesteps, sigmas)
        self.num_inference_steps = len(grid) - 1
        self._set_grid(grid, device)

    def _levels(
        self,
        num_inference_steps: int | None,
        timesteps: Sequence[float] | Tensor | None,
        sigmas: Sequence[float] | Tensor | None,
    ) -> NDArray[np.float64]:
        given = [value is not None for value in (num_inference_steps, timesteps, sigmas)]
        if sum(given) != 1:
            raise ValueError(
                "give exactly one of num_inference_steps, timesteps and sigmas; "
                f"{sum(given)} were given"
            )
        if num_inference_steps is not None:
            return self._default_levels(num_inference_steps)
        if sigmas is not None:
            name, largest, values = "sigmas", 1.0, [float(value) for value in sigmas]
        else:
            assert timesteps is not None
            name, largest, values = "timesteps", float(self._train), [float(t) for t in timesteps]
        if values and values[-1] == 0:
            values.pop()
        check_descending(values, name, largest)
        return np.append(np.array(values, dtype=np.float64) / largest, 0.0)

    def _default_levels(self, num_steps: int) -> NDArray[np.float64]:
        return make_sigmas(
            num_steps,
            shift=self._shift,
            grid=self._grid,
            num_train_timesteps=self._train,
        )

    def _configure(
        self, num_train_timesteps: int, shift: float, grid: SigmaGrid, truncate: bool = False
    ) -> None:
        """Take the settings; until a run is set, the levels are the full training table."""
        self._train = num_train_timesteps
        self._shift = shift
        self._grid = grid
        self._truncate = truncate
        self.num_inference_steps = None
        self._set_grid(self._default_levels(num_train_timesteps), None)

    def _set_grid(self, grid: NDArray[np.float64], device: torch.device | str | None) -> None:
        repeats = torch.full((len(grid),), self.order)
        repeats[0] = repeats[-1] = 1  # the last step ends at level 0 after one evaluation
        levels = torch.from_numpy(grid).repeat_interleave(repeats)
        self.sigmas = levels.float()
        self._sigma_list: list[float] = self.sigmas.tolist()
        if self._truncate:
            told = (levels[:-1] * self._train).long()
        else:
            told = self.sigmas[:-1] * self._train
        self.timesteps = told.to(device or "cpu")
        self._restart()
        self._forget()

    def step(
        self,
        model_output: Tensor,
        timestep: float | Tensor,
        sample: Tensor,
        generator: Generator | Sequence[Generator] | None = None,  # noqa: ARG002 - these draw none
        return_dict: bool = True,
    ) -> SamplerOutput | tuple[Tensor, Tensor]:
        """Move the state to the next level.

        Args:
            model_output: `[B, ...]` velocity `noise - x0` predicted at `timestep`.
            timestep: element of `timesteps`; only read where a run begins without
                `set_begin_index`.
            sample: `[B, ...]` state at this level.
            generator: accepted for exchange with samplers that draw noise; not used.
            return_dict: an object, or the tuple `(prev_sample, pred_original_sample)`.

        The arithmetic is fp32 (fp64 where the state is). Values that are not finite are passed on.

        Raises:
            ValueError: unequal shapes, no schedule, or a schedule that is finished.
        """
        check_same_shape(model_output, sample)
        index = self._next_index(timestep)
        x, velocity = at_least_float32(sample), at_least_float32(model_output)
        moved, clean = self._advance(x, velocity, index)
        self._step_index = index + 1
        moved = moved.to(sample.dtype)
        return SamplerOutput(moved, clean) if return_dict else (moved, clean)

    @abstractmethod
    def _advance(self, x: Tensor, velocity: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """State after evaluation `index`, and the clean sample predicted there."""

    def _forget(self) -> None:
        """Drop what earlier steps left; overridden by samplers with a memory."""

    def scale_noise(self, sample: Tensor, timestep: float | Tensor, noise: Tensor) -> Tensor:
        """Noise a clean sample to the level of a timestep.

        Args:
            sample: `[B, ...]` clean latents.
            timestep: scalar or `[B]`, in units of `timesteps`; with `truncate_timesteps` an element
                of the schedule.
            noise: unit normal, shape of `sample`.

        Returns:
            `(1 - sigma) * sample + sigma * noise` in the dtype of `sample`.

        Raises:
            ValueError: a timestep outside 0..num_train_timesteps.
        """
        check_same_shape(noise, sample)
        times = torch.as_tensor(timestep).reshape(-1).tolist()
        if len(times) not in (1, len(sample)):
            raise ValueError(f"{len(times)} timesteps were given for {len(sample)} samples")
        wide = at_least_float32(sample)
        sigma = torch.tensor(
            [self._sigma_of(time) for time in times], dtype=wide.dtype, device=wide.device
        ).reshape(-1, *([1] * (sample.ndim - 1)))
        return add_noise(wide, at_least_float32(noise), sigma).to(sample.dtype)

    def add_noise(self, original_samples: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """`scale_noise` with diffusers' other order of arguments."""
        return self.scale_noise(original_samples, timesteps, noise)

    def _sigma_of(self, time: float) -> float:
        matches = (self.timesteps.cpu() == time).nonzero().flatten().tolist()
        if matches:
            return self._sigma_list[matches[0]]
        if self._truncate or not 0 <= time <= self._train:
            raise ValueError(
                f"timestep {time} is neither in the schedule nor a level from 0 to {self._train}"
            )
        return float(time) / self._train


def check_choice(key: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise `ValueError` unless the setting `key` has one of the values it may have."""
    if value not in choices:
        raise ValueError(f"{key} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
