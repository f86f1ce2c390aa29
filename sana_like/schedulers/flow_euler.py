"""Flow Euler: explicit Euler steps on a rectified flow."""

from __future__ import annotations

from typing import Any, ClassVar

from diffusers.configuration_utils import register_to_config
from torch import Tensor

from sana_like.schedulers.flow import SigmaGrid, euler_update, velocity_to_x0
from sana_like.schedulers.flow_scheduler import FlowScheduler


class FlowEulerScheduler(FlowScheduler):
    """First order, one network evaluation per step.

    The configuration is that of diffusers' `FlowMatchEulerDiscreteScheduler`.

    Args:
        num_train_timesteps: the network's time scale; it is told `num_train_timesteps * sigma`.
        shift: shift of the levels towards 1.
        sigma_grid: spacing of the levels before the shift, see `flow.make_sigmas`;
            `euler_shifted_twice` reproduces diffusers.

    Raises:
        ValueError: a shift that is not positive or an unknown grid.
    """

    published_class_name: ClassVar[str] = "FlowMatchEulerDiscreteScheduler"
    _extension_keys: ClassVar[dict[str, Any]] = {"sigma_grid": "euler"}

    @register_to_config
    def __init__(
        self,
        num_train_timesteps: int = 1000,
        shift: float = 3.0,
        sigma_grid: SigmaGrid = "euler",
    ) -> None:
        self._configure(num_train_timesteps, shift, sigma_grid)

    def _advance(self, x: Tensor, velocity: Tensor, index: int) -> tuple[Tensor, Tensor]:
        sigma, sigma_next = self._sigma_list[index], self._sigma_list[index + 1]
        return euler_update(x, velocity, sigma, sigma_next), velocity_to_x0(x, velocity, sigma)
