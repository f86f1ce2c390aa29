"""The loop over steps: one sampler of its own for every call, and what happens around each step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from sana_like_pipelines.conditioning import TENSOR_NAMES
from sana_like_pipelines.errors import Cancelled
from sana_like_pipelines.noise import NoiseSource
from sana_like_pipelines.whole import is_whole

CALLBACK_TENSORS = ("latents", *TENSOR_NAMES)
Preview = Callable[[int, int, list[Image.Image]], None]
Callback = Callable[[Any, int, Tensor, dict[str, Any]], Mapping[str, Any] | None]


@dataclass(frozen=True)
class StepHooks:
    """What a caller wants to see of, or change in, the steps of one call.

    Raises:
        ValueError: unknown tensor names, or a `preview_every` below 1.
    """

    callback_on_step_end: Callback | None = None
    """`callback(pipe, step, timestep, tensors)` after every step; may return changed tensors."""
    tensor_inputs: Sequence[str] = ("latents",)
    """Which tensors the callback gets, of `CALLBACK_TENSORS`."""
    cancel: Callable[[], bool] | None = None
    """Asked before every step and before decoding; true ends the call with `Cancelled`."""
    preview: Preview | None = None
    """`preview(steps done, steps, small pictures)`."""
    preview_every: int = 1
    """Steps between previews."""

    def __post_init__(self) -> None:
        # diffusers' callback objects say themselves what they read.
        names = getattr(self.callback_on_step_end, "tensor_inputs", None) or self.tensor_inputs
        object.__setattr__(self, "tensor_inputs", tuple(names))
        unknown = [name for name in self.tensor_inputs if name not in CALLBACK_TENSORS]
        if unknown:
            raise ValueError(
                f"callback_on_step_end_tensor_inputs {unknown} are unknown; legal: "
                f"{', '.join(CALLBACK_TENSORS)}"
            )
        if not is_whole(self.preview_every) or self.preview_every < 1:
            raise ValueError(f"preview_every={self.preview_every!r} must be 1 or more steps")

    def check_cancel(self, done: int, total: int) -> None:
        """Raise `Cancelled` if the caller does not want the picture any more."""
        if self.cancel is not None and self.cancel():
            raise Cancelled(done, total)

    def wants_preview(self, done: int, total: int) -> bool:
        """Whether a preview is due after `done` steps."""
        return self.preview is not None and (done % self.preview_every == 0 or done == total)


class SchedulerRun:
    """A sampler with its own state for one call.

    Args:
        scheduler: one of `sana_like.schedulers`, or a diffusers scheduler for rectified flows; it
            is not changed.
        noise: generators, for samplers that draw noise.
        device: where timesteps are put.
        choice: arguments of `set_timesteps`.

    Raises:
        ValueError: the scheduler does not know one of the arguments, or refuses its value.
    """

    def __init__(
        self,
        scheduler: Any,
        noise: NoiseSource,
        device: torch.device,
        choice: Mapping[str, Any],
    ) -> None:
        self.scheduler = fresh_scheduler(scheduler)
        known = inspect.signature(self.scheduler.set_timesteps).parameters
        unknown = [name for name in choice if name not in known]
        # diffusers' own schedulers shift levels that are given once more, or read them wrongly.
        own = hasattr(scheduler, "fresh")
        if unknown or (not own and "num_inference_steps" not in choice):
            raise ValueError(
                f"{type(scheduler).__name__} takes no {', '.join(unknown or choice)}; use a "
                "scheduler of sana_like.schedulers, such as from_published(scheduler.config)"
            )
        self.scheduler.set_timesteps(device=device, **choice)
        self.timesteps: Tensor = self.scheduler.timesteps
        if hasattr(self.scheduler, "set_begin_index"):
            self.scheduler.set_begin_index(0)
        takes = inspect.signature(self.scheduler.step).parameters
        self._arguments = {"generator": noise.for_scheduler} if "generator" in takes else {}

    def step(self, output: Tensor, timestep: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Latents at the next level, and the clean ones predicted at this one.

        Schedulers that do not tell the latter give the former twice.
        """
        result = self.scheduler.step(
            output, timestep, latents, return_dict=False, **self._arguments
        )
        return result[0], result[-1]


def fresh_scheduler(scheduler: Any) -> Any:
    """A scheduler with the same settings and no run in progress."""
    return scheduler.fresh() if hasattr(scheduler, "fresh") else copy.deepcopy(scheduler)


def steps_or_levels(
    num_inference_steps: int | None,
    timesteps: Sequence[float] | None,
    sigmas: Sequence[float] | None = None,
) -> dict[str, Any]:
    """The argument of `set_timesteps` that a call means: levels win over the default step count.

    Raises:
        ValueError: both kinds of levels, or no whole number of steps.
    """
    if timesteps is not None and sigmas is not None:
        raise ValueError("give timesteps or sigmas, not both")
    if timesteps is not None:
        return {"timesteps": timesteps}
    if sigmas is not None:
        return {"sigmas": sigmas}
    if not is_whole(num_inference_steps) or num_inference_steps < 1:
        raise ValueError(
            f"num_inference_steps={num_inference_steps!r} must be a whole number of 1 or more"
        )
    return {"num_inference_steps": num_inference_steps}


def check_strength(strength: object) -> float:
    """The strength of image to image.

    Raises:
        ValueError: no number above 0 and at most 1.
    """
    if isinstance(strength, (int, float)) and not isinstance(strength, bool) and 0 < strength <= 1:
        return float(strength)
    raise ValueError(f"strength={strength!r} must be a number above 0 and at most 1")
