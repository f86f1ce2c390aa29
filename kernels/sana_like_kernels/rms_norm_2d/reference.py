"""The autoencoders' norm, activation and residual in plain PyTorch: the specification."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm_2d_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    residual: Tensor | None,
    activation: str | None,
    eps: float,
) -> Tensor:
    """`act(x / rms(x) * weight + bias) + residual`, rms over the channels of one pixel.

    The end of a residual block, or of the decoder, of DC-AE (arXiv 2410.10733). Statistics in fp32;
    the normalised value is rounded to the weight's dtype before the product, as in the code that
    the published half-precision weights were made for.

    Args:
        x: `[..., C]`, channels last.
        weight: `[C]`.
        bias: `[C]` or `None`.
        residual: like `x`, or `None`.
        activation: `relu`, `silu` or `None`.
        eps: added to the mean square.

    Returns:
        `[..., C]`.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    out = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    out = out.to(weight.dtype) * weight
    if bias is not None:
        out = out + bias
    if activation is not None:
        out = F.relu(out) if activation == "relu" else F.silu(out)
    return out if residual is None else residual + out
