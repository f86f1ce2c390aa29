"""Rectified flow as pure functions: noise grids, conversions and solver updates.

Notation: `x_sigma = (1 - sigma) * x0 + sigma * noise` with `sigma` in [0, 1]; the network predicts
the velocity `v = noise - x0`. `alpha = 1 - sigma`, `lambda = ln(alpha / sigma)`. Tensors may have
any shape; the levels are Python floats, so that every coefficient is computed in double precision
and only its product with the state is rounded to the state's dtype.

Sources: Liu et al. 2022 (rectified flow); Esser et al. 2024, eq. 23 (shift); Lu et al. 2022,
"DPM-Solver++", eqs. 9-14 and appendix B (multistep updates); SANA, Xie et al. 2024, section 3.4
(Flow-DPM-Solver).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

SigmaGrid = Literal["dpm", "euler", "nvlabs", "euler_shifted_twice"]
SolverType = Literal["midpoint", "heun"]
Level = TypeVar("Level", float, NDArray[np.float64], Tensor)


def shift_sigma(sigma: Level, shift: float) -> Level:
    """Move noise levels towards 1: `s * sigma / (1 + (s - 1) * sigma)`.

    Args:
        sigma: level(s) in [0, 1]; float, array or tensor of any shape.
        shift: positive; 1 changes nothing.
    """
    return shift * sigma / (1 + (shift - 1) * sigma)


def unshift_sigma(sigma: Level, shift: float) -> Level:
    """Inverse of `shift_sigma`."""
    return shift_sigma(sigma, 1 / shift)


def make_sigmas(
    num_steps: int, *, shift: float, grid: SigmaGrid = "dpm", num_train_timesteps: int = 1000
) -> NDArray[np.float64]:
    """Noise levels of a run, highest first, the shift applied once, 0 at the end.

    With `T = num_train_timesteps` and `n = num_steps`, the levels before the shift are

    - `dpm`: `1 - linspace(1, 1/T, n + 1)` reversed, that is `(1 - 1/T) * (n - i) / n`. What
      diffusers' `DPMSolverMultistepScheduler(use_flow_sigmas=True)` uses, and so what published
      SANA folders mean.
    - `euler`: `linspace(1, 1/T, n)`, then 0.
    - `nvlabs`: `linspace(1, 1/T, n + 1)`, the last replaced by 0, so that the run ends at the
      prediction of the clean sample.
    - `euler_shifted_twice`: diffusers' `FlowMatchEulerDiscreteScheduler`, which shifts its smallest
      level when it is built and again when the steps are set. For comparison only.

    Returns:
        float64 array of `num_steps + 1` strictly decreasing levels.

    Raises:
        ValueError: unknown grid, a step count outside 1..T, or a shift that is not positive.
    """
    check_num_steps(num_steps, num_train_timesteps)
    check_shift(shift)
    smallest = 1 / num_train_timesteps
    if grid == "dpm":
        base = 1.0 - np.linspace(1, smallest, num_steps + 1)[:0:-1]
    elif grid == "euler":
        base = np.linspace(1, smallest, num_steps)
    elif grid == "nvlabs":
        base = np.linspace(1, smallest, num_steps + 1)[:-1]
    elif grid == "euler_shifted_twice":
        base = np.linspace(1, shift_sigma(smallest, shift), num_steps)
    else:
        raise ValueError(f"sigma_grid {grid!r} is unknown; choose one of {get_args(SigmaGrid)}")
    return np.append(shift_sigma(base, shift), 0.0)


def check_num_steps(num_steps: int, num_train_timesteps: int) -> None:
    """Raise `ValueError` unless `num_steps` is an integer in 1..num_train_timesteps."""
    whole = isinstance(num_steps, int | np.integer) and not isinstance(num_steps, bool)
    if not whole or not 1 <= num_steps <= num_train_timesteps:
        raise ValueError(
            f"num_inference_steps is {num_steps!r}; it must be an integer from 1 to "
            f"{num_train_timesteps}"
        )


def check_shift(shift: float) -> None:
    """Raise `ValueError` unless `shift` is a positive finite number."""
    if isinstance(shift, bool) or not isinstance(shift, int | float | np.number):
        raise ValueError(f"the shift is {shift!r}; it must be a positive number")
    if not (shift > 0 and math.isfinite(shift)):
        raise ValueError(f"the shift is {shift!r}; it must be positive and finite")


def start_index(strength: float, num_steps: int) -> int:
    """Step at which image-to-image starts, so that `strength` of the run remains.

    The number of steps run is `strength * num_steps` rounded to the nearest, at least one. At
    `strength` 1 all steps run and hardly anything of the picture is left.

    Args:
        strength: in (0, 1].
        num_steps: steps of the whole run.

    Returns:
        Index of the first step, in 0..num_steps - 1. A scheduler with two evaluations per step
        wants it multiplied by its `order` in `set_begin_index`.

    Raises:
        ValueError: `strength` outside (0, 1].
    """
    if not 0 < strength <= 1:
        raise ValueError(f"strength is {strength!r}; it must be above 0 and at most 1")
    return num_steps - max(1, round(strength * num_steps))


def half_log_snr(sigma: float) -> float:
    """`lambda = ln((1 - sigma) / sigma)`; -inf at sigma 1, +inf at sigma 0."""
    if sigma <= 0:
        return math.inf
    if sigma >= 1:
        return -math.inf
    return math.log1p(-sigma) - math.log(sigma)


def add_noise(x0: Tensor, noise: Tensor, sigma: float | Tensor) -> Tensor:
    """Noisy sample `(1 - sigma) * x0 + sigma * noise`; `sigma` broadcasts against `x0`."""
    return (1 - sigma) * x0 + sigma * noise


def velocity_to_x0(x: Tensor, velocity: Tensor, sigma: float | Tensor) -> Tensor:
    """Clean sample that the velocity implies: `x - sigma * v`."""
    return x - sigma * velocity


def velocity_to_noise(x: Tensor, velocity: Tensor, sigma: float | Tensor) -> Tensor:
    """Noise that the velocity implies: `x + (1 - sigma) * v`."""
    return x + (1 - sigma) * velocity


def x0_to_velocity(x: Tensor, x0: Tensor, sigma: float | Tensor) -> Tensor:
    """Velocity that a prediction of the clean sample implies: `(x - x0) / sigma`, sigma > 0."""
    return (x - x0) / sigma


def euler_update(
    x: Tensor, velocity: Tensor, sigma: float | Tensor, sigma_next: float | Tensor
) -> Tensor:
    """One explicit Euler step of `dx/dsigma = v`; levels broadcast, e.g. one for each frame."""
    return x + (sigma_next - sigma) * velocity


def heun_update(
    x: Tensor, velocity: Tensor, velocity_next: Tensor, sigma: float, sigma_next: float
) -> Tensor:
    """One trapezoid step; `velocity_next` is taken at the Euler prediction of the next state."""
    return x + (sigma_next - sigma) * 0.5 * (velocity + velocity_next)


def dpm_first_order_update(x: Tensor, x0: Tensor, sigma: float, sigma_next: float) -> Tensor:
    """DPM-Solver++(1), equal to DDIM: exact where the predicted clean sample is constant.

    `x' = (sigma'/sigma) x + alpha' (1 - e^-h) x0`; the second factor is written
    `alpha' - alpha sigma'/sigma`, which also holds at sigma 1 and at sigma' 0.
    """
    ratio = sigma_next / sigma
    return ratio * x + ((1 - sigma_next) - (1 - sigma) * ratio) * x0


def dpm_second_order_update(
    x: Tensor,
    x0: Sequence[Tensor],
    sigmas: Sequence[float],
    solver_type: SolverType = "midpoint",
) -> Tensor:
    """DPM-Solver++(2M).

    Args:
        x: state at `sigmas[1]`.
        x0: predictions of the clean sample at `sigmas[0]` and `sigmas[1]`.
        sigmas: previous, present and next level, strictly decreasing, the next above 0.
        solver_type: `midpoint` (published) or `heun`: two second-order choices of the factor of the
            first difference.

    Returns:
        State at `sigmas[2]`.
    """
    _check_positive_end(sigmas)
    before, now, after = (half_log_snr(sigma) for sigma in sigmas)
    step = after - now
    alpha = 1 - sigmas[2]
    ratio = sigmas[2] / sigmas[1]
    weight = alpha - (1 - sigmas[1]) * ratio  # alpha' (1 - e^-h)
    slope = step / (now - before) * (x0[1] - x0[0])
    slope_weight = weight / 2 if solver_type == "midpoint" else alpha * _phi_2(step)
    return ratio * x + weight * x0[1] + slope_weight * slope


def dpm_third_order_update(x: Tensor, x0: Sequence[Tensor], sigmas: Sequence[float]) -> Tensor:
    """DPM-Solver++(3M).

    The second difference carries the factor 2 that makes it a second derivative. Lu et al.'s
    reference code and diffusers leave it out, and are then of second order only.

    Args:
        x: state at `sigmas[2]`.
        x0: predictions of the clean sample at `sigmas[0]`, `sigmas[1]` and `sigmas[2]`.
        sigmas: the two previous, the present and the next level, strictly decreasing, the next
            above 0.

    Returns:
        State at `sigmas[3]`.
    """
    _check_positive_end(sigmas)
    first, before, now, after = (half_log_snr(sigma) for sigma in sigmas)
    step = after - now
    r0, r1 = (now - before) / step, (before - first) / step
    alpha = 1 - sigmas[3]
    ratio = sigmas[3] / sigmas[2]
    weight = alpha - (1 - sigmas[2]) * ratio
    near = (x0[2] - x0[1]) / r0
    bend = 2 * (near - (x0[1] - x0[0]) / r1) / (r0 + r1)  # h^2 d^2 x0 / d lambda^2
    slope = near + r0 / 2 * bend  # h d x0 / d lambda
    return ratio * x + weight * x0[2] + alpha * _phi_2(step) * slope - alpha * _phi_3(step) * bend


def _check_positive_end(sigmas: Sequence[float]) -> None:
    if sigmas[-1] <= 0:
        raise ValueError(
            "a second or third order step cannot end at sigma 0, where lambda is infinite; "
            "use dpm_first_order_update for the last step"
        )


def _phi_2(step: float) -> float:
    """`(e^-h - 1) / h + 1`: integral weight of a slope in lambda."""
    return math.expm1(-step) / step + 1


def _phi_3(step: float) -> float:
    """`(e^-h - 1 + h) / h^2 - 1/2`: integral weight of a second difference in lambda."""
    return (math.expm1(-step) + step) / step**2 - 0.5
