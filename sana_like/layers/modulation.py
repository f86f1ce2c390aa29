"""LayerNorm whose scale and shift come from the time (AdaLN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sana_like.layers.linear import is_plain
from sana_like_kernels import gated_residual_norm, modulated_layer_norm


class ModulatedLayerNorm(nn.LayerNorm):
    """`LayerNorm(x) * (1 + scale) + shift` (DiT, arXiv 2212.09748, section 3.2).

    Args:
        dim: width C.
        eps: of the variance.
        affine: whether the LayerNorm itself has a weight and a bias; no published model's has.
    """

    def __init__(self, dim: int, eps: float = 1e-6, affine: bool = False) -> None:
        super().__init__(dim, eps=eps, elementwise_affine=affine)

    def after(
        self, x: Tensor, branch: Tensor, shift: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`r = x + branch` and its modulated norm, both like `x`; see `forward` for the rest."""
        if self.weight is None and branch.dtype == x.dtype and is_plain(self):
            return gated_residual_norm(x, branch, None, shift, scale, eps=self.eps)
        x = x + branch
        return x, self(x, shift, scale)

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        """Norm and modulate.

        Args:
            x: `[B, N, C]`.
            shift, scale: `[B, 1, C]`, or `[B, F, C]` where the N tokens are F frames.

        Returns:
            `[B, N, C]` in the dtype of `x`.
        """
        if self.weight is None:
            return modulated_layer_norm(x, shift, scale, self.eps)
        frames = super().forward(x).unflatten(1, (scale.shape[1], -1))  # [B, F, N / F, C]
        return (frames * (1 + scale.unsqueeze(2)) + shift.unsqueeze(2)).flatten(1, 2).to(x.dtype)


def gated_residual(x: Tensor, gate: Tensor, branch: Tensor) -> Tensor:
    """`x + gate * branch` without ever spreading the gate over tokens.

    Args:
        x, branch: `[B, N, C]`.
        gate: `[B, 1, C]`, or `[B, F, C]` where the N tokens are F frames.

    Returns:
        `[B, N, C]`.
    """
    frames = (gate.shape[1], -1)
    return torch.addcmul(
        x.unflatten(1, frames), gate.unsqueeze(2), branch.unflatten(1, frames)
    ).flatten(1, 2)
