"""Flow-DPM-Solver: multistep DPM-Solver++ on a rectified flow, SANA's default sampler."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from diffusers.configuration_utils import register_to_config
from torch import Tensor

from sana_like.schedulers.flow import (
    SigmaGrid,
    SolverType,
    dpm_first_order_update,
    dpm_second_order_update,
    dpm_third_order_update,
    velocity_to_x0,
)
from sana_like.schedulers.flow_scheduler import FlowScheduler, check_choice

FEW_STEPS = 15  # below this, `lower_order_final` acts, as in diffusers


class FlowDPMSolverScheduler(FlowScheduler):
    """DPM-Solver++ of order 1, 2 or 3 in multistep form, one network evaluation per step.

    The configuration is that of diffusers' `DPMSolverMultistepScheduler` with flow sigmas. The
    order builds up over the first steps, and the last step, which ends at level 0, is first order:
    its result is the predicted clean sample.

    Args:
        num_train_timesteps: the network's time scale; it is told `num_train_timesteps * sigma`.
        solver_order: 1, 2 or 3.
        prediction_type: `flow_prediction` (velocity `noise - x0`).
        algorithm_type: `dpmsolver++`.
        solver_type: `midpoint` or `heun`, the form of the second-order update.
        lower_order_final: with fewer than 15 steps, at most second order in the last but one step.
        euler_at_final: no effect, since the last step is first order anyhow; kept for diffusers.
        use_flow_sigmas: `True`.
        flow_shift: shift of the levels towards 1; SANA 3.0, its 4K models 6.0.
        final_sigmas_type: `zero`.
        sigma_grid: spacing of the levels before the shift, see `flow.make_sigmas`. `dpm` is what
            published folders mean, `nvlabs` what NVlabs' own sampler uses.
        truncate_timesteps: tell the network int64-truncated times as diffusers does, instead of
            the exact ones.

    Raises:
        ValueError: a setting outside the values above.

    Source: Lu et al. 2022, "DPM-Solver++", algorithm 2; SANA, Xie et al. 2024, section 3.4.
    """

    published_class_name: ClassVar[str] = "DPMSolverMultistepScheduler"
    _extension_keys: ClassVar[dict[str, Any]] = {"sigma_grid": "dpm", "truncate_timesteps": False}

    @register_to_config
    def __init__(
        self,
        num_train_timesteps: int = 1000,
        solver_order: int = 2,
        prediction_type: str = "flow_prediction",
        algorithm_type: str = "dpmsolver++",
        solver_type: SolverType = "midpoint",
        lower_order_final: bool = True,
        euler_at_final: bool = False,  # noqa: ARG002 - recorded in the configuration
        use_flow_sigmas: bool = True,
        flow_shift: float = 3.0,
        final_sigmas_type: str = "zero",
        sigma_grid: SigmaGrid = "dpm",
        truncate_timesteps: bool = False,
    ) -> None:
        check_choice("solver_order", solver_order, (1, 2, 3))
        check_choice("prediction_type", prediction_type, ("flow_prediction",))
        check_choice("algorithm_type", algorithm_type, ("dpmsolver++",))
        check_choice("solver_type", solver_type, get_args(SolverType))
        check_choice("use_flow_sigmas", use_flow_sigmas, (True,))
        check_choice("final_sigmas_type", final_sigmas_type, ("zero",))
        self._solver_order = solver_order
        self._solver_type = solver_type
        self._lower_order_final = lower_order_final
        self._configure(num_train_timesteps, flow_shift, sigma_grid, truncate_timesteps)

    def _forget(self) -> None:
        self._clean: list[Tensor] = []  # clean samples predicted at the latest levels

    def _advance(self, x: Tensor, velocity: Tensor, index: int) -> tuple[Tensor, Tensor]:
        levels = self._sigma_list
        clean = velocity_to_x0(x, velocity, levels[index])
        self._clean = [*self._clean, clean][-self._solver_order :]
        order = self._order_of(index)
        if order == 1:
            moved = dpm_first_order_update(x, clean, levels[index], levels[index + 1])
        elif order == 2:
            moved = dpm_second_order_update(
                x, self._clean[-2:], levels[index - 1 : index + 2], self._solver_type
            )
        else:
            moved = dpm_third_order_update(x, self._clean, levels[index - 2 : index + 2])
        return moved, clean

    def _order_of(self, index: int) -> int:
        last = self._num_evaluations() - 1
        if index == last:
            return 1
        few = self._lower_order_final and self._num_evaluations() < FEW_STEPS
        highest = 2 if few and index == last - 1 else 3
        return min(len(self._clean), highest)
