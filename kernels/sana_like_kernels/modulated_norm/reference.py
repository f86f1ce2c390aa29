"""AdaLN modulation in plain PyTorch: the specification."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def modulated_layer_norm_reference(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """`LayerNorm(x) * (1 + scale) + shift`, LayerNorm without weights (DiT, arXiv 2212.09748).

    Args:
        x: `[B, N, C]`.
        shift, scale: broadcastable to `x`, e.g. `[B, 1, C]`.
        eps: of the variance.

    Returns:
        `[B, N, C]`.
    """
    return F.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift
