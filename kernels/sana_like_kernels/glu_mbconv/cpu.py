"""The feed-forward for inference on a CPU: a few channels at a time.

Each hidden channel is convolved by itself and meets only its gate, so the wide hidden tensor never
exists: a group of channels is expanded, convolved and gated while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from sana_like_kernels.inference import plain_inference
from sana_like_kernels.linear import linear

# Bytes of a group's values; as many again are gates.
GROUP = 12 * 2**20
NARROWEST = 128

Expand = Callable[[slice], Tensor]


def glu_depthwise_inference(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, expand_bias: Tensor | None
) -> Tensor:
    """The op; see `glu_mbconv` for arguments."""

    def expand(channels: slice) -> Tensor:
        part = hidden[..., channels]
        if expand_bias is None:
            return F.silu(part)
        return F.silu(part + expand_bias[channels], inplace=True)

    return _gated(hidden.shape[:-1], expand, weight, bias, hidden.dtype)


def gated_feed_forward(
    x: Tensor,
    expand_weight: Tensor,
    expand_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    point_weight: Tensor,
) -> Tensor:
    """Expansion, SiLU, depthwise 3x3, gate and projection.

    Args:
        x: `[B, Y, X, C]`.
        expand_weight, expand_bias: `[2h, C]`, `[2h]` or `None`.
        weight, bias: of the depthwise convolution, `[2h, 1, 3, 3]`, `[2h]` or `None`.
        point_weight: `[O, h]`.

    Returns:
        `[B, Y, X, O]`.
    """

    def expand(channels: slice) -> Tensor:
        part = None if expand_bias is None else expand_bias[channels]
        return linear(x, expand_weight[channels], part, activation="silu")

    return linear(_gated(x.shape[:-1], expand, weight, bias, x.dtype), point_weight)


def _gated(
    shape: torch.Size, expand: Expand, weight: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """`[B, Y, X, h]` from a function that gives some channels of the hidden tensor after SiLU."""
    half = len(weight) // 2
    out = torch.empty(*shape, half, dtype=dtype)
    for first in _groups(half, shape.numel() * dtype.itemsize):
        value, gate = (
            _depthwise(expand(channels), weight, bias, channels)
            for channels in (first, slice(half + first.start, half + first.stop))
        )
        torch.mul(value, F.silu(gate, inplace=True), out=out[..., first])
    return out


def _groups(channels: int, bytes_each: int) -> Iterator[slice]:
    """About equal groups of channels, each of about `GROUP` bytes."""
    width = max(NARROWEST, GROUP // max(bytes_each, 1))
    count = -(-channels // width)
    width = -(-channels // (32 * count)) * 32
    for start in range(0, channels, width):
        yield slice(start, min(start + width, channels))


def _depthwise(planes: Tensor, weight: Tensor, bias: Tensor | None, channels: slice) -> Tensor:
    """`[B, Y, X, c]` convolved with the weights of these channels."""
    part = None if bias is None else bias[channels]
    out = F.conv2d(
        planes.permute(0, 3, 1, 2), weight[channels], part, padding=1, groups=planes.shape[-1]
    )
    return out.permute(0, 2, 3, 1)


def takes(*tensors: Tensor | None) -> bool:
    """Whether these functions may be used for `tensors`, all of one dtype."""
    given = [x for x in tensors if x is not None]
    return plain_inference(*given) and len({x.dtype for x in given}) == 1
