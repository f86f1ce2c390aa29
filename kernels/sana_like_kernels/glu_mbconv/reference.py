"""The inner part of GLUMBConv in plain PyTorch: the specification."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def glu_depthwise_reference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, expand_bias: Tensor | None = None
) -> Tensor:
    """`a * SiLU(b)` with `(a, b) = depthwise3x3(SiLU(hidden + expand_bias)) + bias`.

    The Mix-FFN of SANA (arXiv 2410.10629, section 3.2) without its two 1x1 convolutions.

    Args:
        hidden: `[B, Y, X, 2h]`, channels last; the expansion before its SiLU.
        weight: `[2h, 1, 3, 3]`, zero-padded by one, after the SiLU.
        bias: `[2h]` or `None`.
        expand_bias: `[2h]`, that of the expansion, or `None` where `hidden` has it already.

    Returns:
        `[B, Y, X, h]`.
    """
    if expand_bias is not None:
        hidden = hidden + expand_bias
    # A channels-last tensor seen as [B, C, Y, X] costs nothing and keeps the fast convolution.
    planes = F.silu(hidden).permute(0, 3, 1, 2)
    planes = F.conv2d(planes, weight, bias, padding=1, groups=weight.shape[0])
    value, gate = planes.permute(0, 2, 3, 1).chunk(2, dim=-1)
    return value * F.silu(gate)
