"""Normalisation over the channels of channels-last tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sana_like.layers.linear import is_plain
from sana_like_kernels import rms_norm_2d
from sana_like_kernels.rms_norm_2d.cpu import rms_norm_2d_inference


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


# What `rms_norm_2d` calls them.
ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}


def norm_end(
    norm: nn.Module,
    x: Tensor,
    *,
    activation: nn.Module | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`act(norm(x)) + residual`, in one pass where the norm allows it.

    Args:
        norm: from `channel_norm`.
        x: `[..., C]`.
        activation: pointwise, or `None`.
        residual: like `x`, or `None`.
        out: where to write, in inference; may be `x` or `residual`.

    Returns:
        `[..., C]`.
    """
    known = activation is None or type(activation) in ACTIVATIONS
    if isinstance(norm, RMSNorm) and is_plain(norm) and known:
        # Of one dtype, as without autocast; else the residual's, if wider, is the stream's.
        dtypes = {t.dtype for t in (x, norm.weight, residual) if t is not None}
        if len(dtypes) == 1:
            name = None if activation is None else ACTIVATIONS[type(activation)]
            given: dict[str, Any] = {"residual": residual, "activation": name}
            if out is not None:
                weights = (norm.weight, norm.bias)
                return rms_norm_2d_inference(x, *weights, eps=norm.eps, out=out, **given)
            return rms_norm_2d(x, norm.weight, norm.bias, eps=norm.eps, **given)
    result: Tensor = norm(x)
    if activation is not None:
        result = activation(result)
    if residual is not None:
        result = residual + result
    return result if out is None else out.copy_(result)


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
