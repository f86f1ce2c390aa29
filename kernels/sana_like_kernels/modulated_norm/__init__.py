"""LayerNorm with AdaLN scale and shift."""

from __future__ import annotations

from torch import Tensor

from sana_like_kernels.modulated_norm.reference import modulated_layer_norm_reference

__all__ = ["modulated_layer_norm", "modulated_layer_norm_reference"]


def modulated_layer_norm(x: Tensor, shift: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    """`LayerNorm(x) * (1 + scale) + shift`.

    Args:
        x: `[B, N, C]`.
        shift, scale: broadcastable to `x`, e.g. `[B, 1, C]`.
        eps: of the variance.

    Returns:
        `[B, N, C]`, in the dtype of `x`.
    """
    return modulated_layer_norm_reference(x, shift, scale, eps).to(x.dtype)
