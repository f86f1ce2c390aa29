"""Flow Heun: trapezoid steps on a rectified flow."""

from __future__ import annotations

from typing import Any, ClassVar

from diffusers.configuration_utils import register_to_config
from torch import Tensor

from sana_like.schedulers.flow import SigmaGrid, euler_update, heun_update, velocity_to_x0
from sana_like.schedulers.flow_scheduler import FlowScheduler


class FlowHeunScheduler(FlowScheduler):
    """Second order, two network evaluations per step and one in the last.

    `n` steps make `2 n - 1` timesteps: every step predicts the next state by Euler, evaluates the
    network there, and corrects. The last step ends at level 0 with Euler alone, so its result is
    the predicted clean sample. The configuration is that of diffusers'
    `FlowMatchHeunDiscreteScheduler`.

    Args:
        num_train_timesteps: the network's time scale; it is told `num_train_timesteps * sigma`.
        shift: shift of the levels towards 1.
        sigma_grid: spacing of the levels before the shift, see `flow.make_sigmas`;
            `euler_shifted_twice` reproduces diffusers.

    Raises:
        ValueError: a shift that is not positive or an unknown grid.
    """

    order = 2
    published_class_name: ClassVar[str] = "FlowMatchHeunDiscreteScheduler"
    _extension_keys: ClassVar[dict[str, Any]] = {"sigma_grid": "euler"}

    @register_to_config
    def __init__(
        self,
        num_train_timesteps: int = 1000,
        shift: float = 3.0,
        sigma_grid: SigmaGrid = "euler",
    ) -> None:
        self._configure(num_train_timesteps, shift, sigma_grid)

    def _forget(self) -> None:
        self._before: tuple[Tensor, Tensor] | None = None  # state and velocity at the step's start

    def _advance(self, x: Tensor, velocity: Tensor, index: int) -> tuple[Tensor, Tensor]:
        clean = velocity_to_x0(x, velocity, self._sigma_list[index])
        if self._before is None:
            moved = euler_update(x, velocity, self._sigma_list[index], self._sigma_list[index + 1])
            if index + 1 < self._num_evaluations():
                self._before = (x, velocity)
            return moved, clean
        start, start_velocity = self._before
        self._before = None
        levels = self._sigma_list[index - 1], self._sigma_list[index]
        return heun_update(start, start_velocity, velocity, *levels), clean
