"""The inner part of GLUMBConv in plain PyTorch: the specification."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def glu_depthwise_reference(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`a * SiLU(b)` with `(a, b) = depthwise3x3(SiLU(hidden)) + bias` (SANA, section 3.2, Mix-FFN).

    Args:
        hidden: `[B, Y, X, 2h]`, channels last; the expansion before its SiLU.
        weight: `[2h, 1, 3, 3]`, zero-padded by one.
        bias: `[2h]` or `None`.

    Returns:
        `[B, Y, X, h]`.
    """
    # A channels-last tensor seen as [B, C, Y, X] costs nothing and keeps the fast convolution.
    planes = F.silu(hidden).permute(0, 3, 1, 2)
    planes = F.conv2d(planes, weight, bias, padding=1, groups=weight.shape[0])
    value, gate = planes.permute(0, 2, 3, 1).chunk(2, dim=-1)
    return value * F.silu(gate)
