"""Losses on pictures. Pictures are `[B, 3, Y, X]` in [-1, 1]; every loss is per sample, `[B]`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pixel_l1(error: Tensor) -> Tensor:
    """Mean absolute value of `error = reconstruction - target`."""
    return error.abs().mean((1, 2, 3))


def pixel_square(error: Tensor) -> Tensor:
    """Mean square of `error = reconstruction - target`."""
    return error.square().mean((1, 2, 3))


def gradient_l1(error: Tensor) -> Tensor:
    """Mean absolute finite difference of the error, along Y and X: penalises blurred edges."""
    along_y = error.diff(dim=2).abs().mean((1, 2, 3))
    along_x = error.diff(dim=3).abs().mean((1, 2, 3))
    return 0.5 * (along_y + along_x)


def temporal_l1(error: Tensor) -> Tensor:
    """Mean absolute change of the error from frame to frame: penalises flicker and lost motion.

    Args:
        error: of clips, `[B, 3, T, Y, X]`; one frame has no change, and no loss.
    """
    if error.shape[2] < 2:
        return error.new_zeros(len(error))
    return error.diff(dim=2).abs().mean((1, 2, 3, 4))


def structural_dissimilarity(first: Tensor, second: Tensor, scales: int = 2) -> Tensor:
    """`1 - SSIM` with a 7x7 box window, averaged over scales (Wang et al. 2004).

    Each further scale halves the pictures first.
    """
    total = torch.zeros(first.shape[0], device=first.device)
    for scale in range(scales):
        if scale:
            first, second = F.avg_pool2d(first, 2), F.avg_pool2d(second, 2)
        total = total + 1 - _ssim(first, second)
    return total / scales


def _ssim(first: Tensor, second: Tensor) -> Tensor:
    # Constants for pictures of range 2.
    c1, c2 = (0.01 * 2) ** 2, (0.03 * 2) ** 2
    moments = torch.stack((first, second, first * first, second * second, first * second))
    pooled = F.avg_pool2d(moments.flatten(0, 1).float(), 7, stride=1)
    mean1, mean2, square1, square2, product = pooled.unflatten(0, (5, -1))
    variances = square1 - mean1 * mean1 + square2 - mean2 * mean2
    covariance = product - mean1 * mean2
    luminance = (2 * mean1 * mean2 + c1) / (mean1 * mean1 + mean2 * mean2 + c1)
    return (luminance * (2 * covariance + c2) / (variances + c2)).mean((1, 2, 3))


class PatchDiscriminator(nn.Module):
    """Says of every patch of a picture whether it is real (Isola et al. 2017).

    Args:
        width: channels of the first layer; doubled per layer up to eight times.
        layers: strided 4x4 convolutions; each doubles the patch size.
    """

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        blocks: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
        channels = width
        for index in range(1, layers):
            wider = width * min(2**index, 8)
            blocks += [
                nn.Conv2d(channels, wider, 4, 2, 1, bias=False),
                nn.GroupNorm(8, wider),
                nn.LeakyReLU(0.2),
            ]
            channels = wider
        self.body = nn.Sequential(*blocks, nn.Conv2d(channels, 1, 3, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        """`[B, 3, Y, X]` to logits `[B, 1, Y / 2^layers, X / 2^layers]`."""
        return self.body(pictures)


def hinge_discriminator(real: Tensor, fake: Tensor) -> Tensor:
    """Hinge loss of the discriminator from its logits, per sample."""
    return 0.5 * (F.relu(1 - real).flatten(1).mean(1) + F.relu(1 + fake).flatten(1).mean(1))
