"""How near a reconstructed picture is to its original: PSNR and SSIM, per picture."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_WINDOW = 11
_SIGMA = 1.5
_C1, _C2 = 0.01**2, 0.03**2


def psnr(pictures: Tensor, originals: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio `[B]` fp64 in dB of pictures `[B, C, Y, X]` in [-1, 1].

    10 log10(peak^2 / mean squared error), peak 2; infinite where they are equal.
    """
    _check_shapes(pictures, originals)
    error = (pictures.double() - originals.double()).square().mean(dim=(1, 2, 3))
    return 10.0 * torch.log10(4.0 / error)


def ssim(pictures: Tensor, originals: Tensor) -> Tensor:
    """Return the structural similarity `[B]` fp64 of pictures `[B, C, Y, X]` in [-1, 1].

    Wang et al. 2004: Gaussian window of 11 with sigma 1.5, K1 = 0.01, K2 = 0.03, mean over all
    windows that lie inside the picture, and over the channels.
    """
    _check_shapes(pictures, originals)
    if min(pictures.shape[-2:]) < _WINDOW:
        raise ValueError(f"SSIM needs pictures of at least {_WINDOW} pixels a side")
    # The luminance term compares means, so values must count from black.
    x, y = (pictures.double() + 1.0) / 2.0, (originals.double() + 1.0) / 2.0
    mean_x, mean_y = _windowed(x), _windowed(y)
    variance_x = _windowed(x * x) - mean_x.square()
    variance_y = _windowed(y * y) - mean_y.square()
    covariance = _windowed(x * y) - mean_x * mean_y
    luminance = (2.0 * mean_x * mean_y + _C1) / (mean_x.square() + mean_y.square() + _C1)
    structure = (2.0 * covariance + _C2) / (variance_x + variance_y + _C2)
    return (luminance * structure).mean(dim=(1, 2, 3))


def _windowed(planes: Tensor) -> Tensor:
    """Gaussian-weighted mean of every window: `[B, C, Y, X]` to `[B, C, Y - 10, X - 10]`."""
    offsets = torch.arange(_WINDOW, dtype=planes.dtype, device=planes.device) - _WINDOW // 2
    weights = torch.exp(-offsets.square() / (2.0 * _SIGMA**2))
    weights = weights / weights.sum()
    single = planes.flatten(0, 1).unsqueeze(1)  # [B * C, 1, Y, X]
    rows = F.conv2d(single, weights.view(1, 1, 1, _WINDOW))
    both = F.conv2d(rows, weights.view(1, 1, _WINDOW, 1))
    return both.unflatten(0, planes.shape[:2]).squeeze(2)


def _check_shapes(pictures: Tensor, originals: Tensor) -> None:
    if pictures.shape != originals.shape or pictures.ndim != 4:
        raise ValueError(
            "pictures and originals must both be [B, C, Y, X] of one shape, not "
            f"{tuple(pictures.shape)} and {tuple(originals.shape)}"
        )
