"""TrigFlow around a rectified-flow network, as pure functions.

Notation: trigonometric time `s` in [0, pi/2]; `x_s = cos(s) * x0 + sin(s) * z` with data scaled to
standard deviation `sigma_data` and `z ~ N(0, sigma_data^2)`. The network keeps its rectified-flow
input and output; the functions below change variables without loss.

Sources: Lu and Song 2024 (sCM, TrigFlow); SANA-Sprint, Chen et al. 2025, section 3.1 and eq. 6-8.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_TIME = 1.57080  # the published start, a hair above pi/2
PUBLISHED_INTERMEDIATE = 1.3  # second time of the published two-step run


def trigflow_to_flow_time(s: Tensor) -> Tensor:
    """Rectified-flow level `tau = sin s / (cos s + sin s)`, from 0 at 0 to 1 at pi/2; any shape."""
    return torch.sin(s) / (torch.cos(s) + torch.sin(s))


def flow_to_trigflow_time(tau: Tensor) -> Tensor:
    """Inverse of `trigflow_to_flow_time`."""
    return torch.atan2(tau, 1 - tau)


def trigflow_model_input(x: Tensor, s: Tensor, sigma_data: float) -> tuple[Tensor, Tensor]:
    """What the rectified-flow network is given for the state `x` at time `s`.

    Args:
        x: state `[B, ...]`.
        s: trigonometric time `[B]`.
        sigma_data: standard deviation of the data in state units.

    Returns:
        `x / sigma_data * sqrt(tau^2 + (1 - tau)^2)` and `tau` `[B]` in [0, 1].
    """
    tau = trigflow_to_flow_time(s)
    return x / sigma_data * _norm(_spread(tau, x)), tau


def trigflow_output(model_input: Tensor, velocity: Tensor, tau: Tensor) -> Tensor:
    """TrigFlow prediction `F` from the network's velocity.

    Args:
        model_input: `[B, ...]`, from `trigflow_model_input`.
        velocity: network output of the same shape.
        tau: `[B]`, from `trigflow_model_input`.

    Returns:
        `((1 - 2 tau) x + (1 - 2 tau + 2 tau^2) v) / sqrt(tau^2 + (1 - tau)^2)`. A scheduler's
        `step` wants it multiplied by `sigma_data`.
    """
    t = _spread(tau, model_input)
    return ((1 - 2 * t) * model_input + (1 - 2 * t + 2 * t**2) * velocity) / _norm(t)


def trigflow_to_x0(x: Tensor, prediction: Tensor, s: float) -> Tensor:
    """Clean sample `cos(s) x - sin(s) F`, with `F` in state units (times `sigma_data`)."""
    return math.cos(s) * x - math.sin(s) * prediction


def trigflow_add_noise(x0: Tensor, noise: Tensor, s: float, sigma_data: float) -> Tensor:
    """State `cos(s) x0 + sin(s) sigma_data noise` for unit normal `noise`."""
    return math.cos(s) * x0 + math.sin(s) * (noise * sigma_data)


def trigflow_times(
    num_steps: int,
    *,
    max_time: float = MAX_TIME,
    intermediate: float | None = PUBLISHED_INTERMEDIATE,
    strength: float = 1.0,
) -> list[float]:
    """Times of a run, highest first, 0 at the end.

    Args:
        num_steps: number of network evaluations, at least 1.
        max_time: first time; published 1.57080.
        intermediate: second time of a two-step run; with any other count, or with `None`, the
            times are evenly spaced.
        strength: in (0, 1]; image-to-image multiplies all times by it, so that every step is run
            and the picture keeps weight `cos(strength * max_time)` at the start.

    Raises:
        ValueError: `strength` outside (0, 1].
    """
    if not 0 < strength <= 1:
        raise ValueError(f"strength is {strength!r}; it must be above 0 and at most 1")
    if num_steps == 2 and intermediate is not None:
        times = [max_time, intermediate, 0.0]
    else:
        times = torch.linspace(max_time, 0, num_steps + 1).tolist()  # fp32, as published
    return [strength * time for time in times]


def _spread(tau: Tensor, like: Tensor) -> Tensor:
    """`[B]` or `[]` to `[B, 1, ...]` with the rank of `like`."""
    return tau.reshape(-1, *([1] * (like.ndim - 1)))


def _norm(tau: Tensor) -> Tensor:
    return torch.sqrt(tau**2 + (1 - tau) ** 2)
