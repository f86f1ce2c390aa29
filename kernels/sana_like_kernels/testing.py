"""Comparison of an op with its reference, by relative RMS."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_rms(reference: Tensor, out: Tensor, scale: Tensor | None = None) -> float:
    """`rms(out - reference) / rms(scale)` in fp64, `scale` being the reference if not given.

    Where `scale` is all zero, the plain rms of the difference.
    """
    reference = reference.detach().double()
    out = out.detach().double().to(reference.device)
    whole = _rms(reference if scale is None else scale.detach().double())
    return _rms(out - reference) / (whole or 1.0)


def _rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item() if x.numel() else 0.0


def assert_close(
    name: str, reference: Tensor, out: Tensor, ratio: float, scale: Tensor | None = None
) -> None:
    """Raise AssertionError unless `out` is `reference` up to `ratio` in relative RMS.

    Args:
        name: of what is compared, for the message.
        reference: usually fp64.
        out: of the same shape; a NaN in it is never close.
        ratio: largest relative RMS, e.g. 1e-5 for fp32 and 5e-3 for half precision.
        scale: what the difference is relative to, where terms cancel and the reference is only
            their rounding.
    """
    if out.shape != reference.shape:
        raise AssertionError(f"{name}: shape {tuple(out.shape)}, not {tuple(reference.shape)}")
    error = relative_rms(reference, out, scale)
    if not error <= ratio:  # also where it is NaN
        largest = (out.double() - reference.double()).abs().max().item()
        cosine = torch.cosine_similarity(
            out.double().flatten(), reference.double().flatten(), dim=0
        ).item()
        raise AssertionError(
            f"{name}: relative RMS {error:.2e} is over {ratio:.0e} "
            f"(largest difference {largest:.2e}, cosine {cosine:.6f})"
        )
