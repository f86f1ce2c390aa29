"""Distribution matching on numbers whose distributions are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sana_like.schedulers.flow import add_noise
from sana_like_train.tasks.distribution import (
    clean_seen,
    distribution_matching,
    noised,
    score_sigmas,
    sliced_distance,
)

MEAN, SPREAD = 3.0, 0.5


class Gaussian(nn.Module):
    """Predicts velocities of numbers with a normal distribution, whose two parameters it learns."""

    def __init__(self, mean: float, spread: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.tensor(mean))
        self.log_spread = nn.Parameter(torch.tensor(spread).log())

    def forward(self, noisy: Tensor, sigmas: Tensor) -> Tensor:
        sigma, variance = sigmas[:, None], (2 * self.log_spread).exp()
        total = (1 - sigma) ** 2 * variance + sigma**2
        away = noisy - (1 - sigma) * self.mean
        clean = self.mean + (1 - sigma) * variance / total * away
        return (noisy - clean) / sigma


def test_a_generator_reaches_the_distribution_of_its_teacher() -> None:
    """From noise around 0 to the teacher's mean and spread, the critic following the generator."""
    torch.manual_seed(0)
    teacher, critic = Gaussian(MEAN, SPREAD), Gaussian(MEAN, SPREAD)
    scale, shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(0.0))
    generator_steps = torch.optim.Adam([scale, shift], lr=0.05)
    critic_steps = torch.optim.Adam(critic.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(1)
    for step in range(2000):
        made = scale * torch.randn(64, 1) + shift
        if step % 3 == 0:
            sigmas = score_sigmas(64, 1.0, draws)
            with torch.no_grad():
                noisy = noised(made, torch.randn(64, 1), sigmas)
                real = clean_seen(noisy, teacher(noisy, sigmas), sigmas)
                fake = clean_seen(noisy, critic(noisy, sigmas), sigmas)
            generator_steps.zero_grad()
            distribution_matching(made, real, fake).mean().backward()
            generator_steps.step()
        sigmas, noise = score_sigmas(64, 1.0, draws), torch.randn(64, 1)
        clean = made.detach()
        error = critic(add_noise(clean, noise, sigmas[:, None]), sigmas) - (noise - clean)
        critic_steps.zero_grad()
        error.square().mean().backward()
        critic_steps.step()
    assert float(shift.detach()) == pytest.approx(MEAN, abs=0.2)
    assert float(scale.detach().abs()) == pytest.approx(SPREAD, abs=0.2)


def test_nothing_moves_where_teacher_and_critic_agree_or_samples_are_given() -> None:
    made = torch.randn(2, 3, 4, requires_grad=True)
    real, fake = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    (same,) = torch.autograd.grad(distribution_matching(made, real, real).sum(), made)
    assert not same.any()
    given = torch.ones(2, 1, 4)
    given[:, :, 0] = 0
    (moved,) = torch.autograd.grad(distribution_matching(made, real, fake, given).sum(), made)
    assert not moved[:, :, 0].any() and moved[:, :, 1:].all()
    wanted = (fake - real) / (made - real).abs().mean((1, 2), keepdim=True) / 12
    assert torch.allclose(moved[:, :, 1:], wanted.detach()[:, :, 1:], atol=1e-6)


def test_score_levels_are_shifted_and_keep_away_from_the_ends() -> None:
    draws = torch.Generator().manual_seed(0)
    plain, shifted = score_sigmas(10_000, 1.0, draws), score_sigmas(10_000, 5.0, draws)
    assert plain.min() >= 0.02 and plain.max() <= 0.98 and shifted.max() < 1
    assert float(plain.median()) == pytest.approx(0.5, abs=0.02)
    assert float(shifted.median()) == pytest.approx(5 / 6, abs=0.02)


def test_sliced_distance() -> None:
    torch.manual_seed(0)
    points = torch.randn(200, 6)
    assert sliced_distance(points, points[torch.randperm(200)]) < 1e-6
    near, far = sliced_distance(points, points + 0.5), sliced_distance(points, points + 2.0)
    assert far == pytest.approx(4 * near, rel=1e-3)
    assert sliced_distance(points[:50], points) < near / 2
