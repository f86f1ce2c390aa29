"""Distribution matching: a generator drawn towards a teacher by the difference of two scores."""

from __future__ import annotations

import torch
from torch import Tensor

from sana_like.schedulers.flow import add_noise, shift_sigma, velocity_to_x0
from sana_like_train.tasks.flow_matching import levels_of

# Levels at which scores are compared keep away from the ends, where they say little.
_LEAST, _LARGEST = 0.02, 0.98


def score_sigmas(count: int, shift: float, generator: torch.Generator) -> Tensor:
    """Levels `[count]` at which scores are compared: uniform, then shifted (Self Forcing)."""
    uniform = torch.rand(count, generator=generator)
    return shift_sigma(_LEAST + (_LARGEST - _LEAST) * uniform, shift)


def distribution_matching(
    made: Tensor, real: Tensor, fake: Tensor, weight: Tensor | None = None
) -> Tensor:
    """Loss `[B]` whose gradient moves samples from where they are common to where they should be.

    The gradient at a sample is `(fake - real) / mean |made - real|`: the clean sample that a critic
    sees in its noisy copy, less the one that the teacher sees (DMD, Yin et al. 2024, equations 7
    and 8; DMD2).

    Args:
        made: samples of the generator, with gradient.
        real, fake: clean samples that teacher and critic predict of one noisy copy of each.
        weight: 1 where a sample counts and 0 where it was given, broadcast against `made`.
    """
    with torch.no_grad():
        scale = (made - real).abs().flatten(1).mean(1).clamp_min(1e-6)
        gradient = (fake - real) / scale.view(-1, *[1] * (made.ndim - 1))
        if weight is not None:
            gradient = gradient * weight
        target = made - gradient
    return 0.5 * (made - target).square().flatten(1).mean(1)


def noised(made: Tensor, noise: Tensor, sigmas: Tensor) -> Tensor:
    """Samples at levels `sigmas`, `[B]` or `[B, F]`, without gradient."""
    return add_noise(made.detach(), noise, levels_of(sigmas, made))


def clean_seen(noisy: Tensor, velocity: Tensor, sigmas: Tensor) -> Tensor:
    """The clean sample that a velocity implies at levels `sigmas`, `[B]` or `[B, F]`."""
    return velocity_to_x0(noisy, velocity, levels_of(sigmas, noisy))


def sliced_distance(first: Tensor, second: Tensor, directions: int = 64) -> float:
    """Sliced Wasserstein distance between two sets of points `[N, D]` and `[M, D]`.

    The mean over fixed random directions of the mean distance between the quantiles of both sets
    (Bonneel et al. 2015).
    """
    generator = torch.Generator().manual_seed(0)
    ways = torch.randn(first.shape[1], directions, generator=generator)
    ways = ways / ways.norm(dim=0)
    marks = torch.linspace(0, 1, min(len(first), len(second)))
    one, other = (torch.quantile(points @ ways, marks, dim=0) for points in (first, second))
    return float((one - other).abs().mean())
