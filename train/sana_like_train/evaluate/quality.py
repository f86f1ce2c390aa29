"""How near a reconstructed picture is to its original: PSNR and SSIM, per picture."""

from __future__ import annotations

import torch
from torch import Tensor


def psnr(pictures: Tensor, originals: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio `[B]` fp64 in dB of pictures `[B, C, Y, X]` in [-1, 1].

    10 log10(peak^2 / mean squared error), peak 2; infinite where they are equal.
    """
    _check_shapes(pictures, originals)
    error = (pictures.double() - originals.double()).square().mean(dim=(1, 2, 3))
    return 10.0 * torch.log10(4.0 / error)


def ssim(pictures: Tensor, originals: Tensor) -> Tensor:
    """Return the structural similarity `[B]` of pictures `[B, C, Y, X]` in [-1, 1].

    Wang et al. 2004: Gaussian window of 11 with sigma 1.5, K1 = 0.01, K2 = 0.03, mean over the
    three colour channels. Raises `ImportError` naming the extra where torchmetrics is missing.
    """
    _check_shapes(pictures, originals)
    try:
        from torchmetrics.functional.image import structural_similarity_index_measure
    except ImportError as error:
        raise ImportError(
            "SSIM is computed by torchmetrics; install it with pip install 'sana-like[eval]'"
        ) from error
    values = structural_similarity_index_measure(
        pictures.double(), originals.double(), data_range=2.0, reduction="none"
    )
    assert isinstance(values, Tensor)
    return values


def _check_shapes(pictures: Tensor, originals: Tensor) -> None:
    if pictures.shape != originals.shape or pictures.ndim != 4:
        raise ValueError(
            "pictures and originals must both be [B, C, Y, X] of one shape, not "
            f"{tuple(pictures.shape)} and {tuple(originals.shape)}"
        )
