"""Normalisation over the channels of channels-last tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """`x / rms(x) * weight + bias` over the last dimension, statistics in fp32.

    The normalised value is rounded to the weight's dtype before the product, as in the code that
    the published half-precision weights were made for.

    Args:
        dim: width of the last dimension.
        eps: added to the mean square.
        bias: whether there is a bias.
    """

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """`[..., dim]` to the same shape, in the weight's dtype."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        out = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        out = out.to(self.weight.dtype) * self.weight
        if self.bias is not None:
            out = out + self.bias
        return out


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation of `[B, Y, X, C]`, with the keys of `nn.BatchNorm2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, C]` to the same shape."""
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def channel_norm(kind: str, dim: int) -> nn.Module:
    """The autoencoders' norm called `kind`: `rms_norm`, `batch_norm` or `layer_norm`.

    Raises:
        ValueError: another `kind`.
    """
    if kind == "rms_norm":
        return RMSNorm(dim, eps=1e-5, bias=True)
    if kind == "batch_norm":
        return BatchNorm(dim)
    if kind == "layer_norm":
        return nn.LayerNorm(dim, eps=1e-5)
    raise ValueError(f"norm type {kind!r} is unknown; use rms_norm, batch_norm or layer_norm")
