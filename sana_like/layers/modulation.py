"""LayerNorm whose scale and shift come from the time (AdaLN)."""

from __future__ import annotations

from torch import Tensor, nn

from sana_like_kernels import modulated_layer_norm


class ModulatedLayerNorm(nn.LayerNorm):
    """`LayerNorm(x) * (1 + scale) + shift` (DiT, arXiv 2212.09748, section 3.2).

    Args:
        dim: width C.
        eps: of the variance.
        affine: whether the LayerNorm itself has a weight and a bias; no published model's has.
    """

    def __init__(self, dim: int, eps: float = 1e-6, affine: bool = False) -> None:
        super().__init__(dim, eps=eps, elementwise_affine=affine)

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        """`x [B, N, C]`, `shift` and `scale` `[B, 1, C]`; the result has the dtype of `x`."""
        if self.weight is None:
            return modulated_layer_norm(x, shift, scale, self.eps)
        return (super().forward(x) * (1 + scale) + shift).to(x.dtype)
