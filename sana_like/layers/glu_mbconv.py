"""The gated mobile convolution that SANA uses as feed-forward (Mix-FFN)."""

from __future__ import annotations

from torch import Tensor, nn

from sana_like.layers.linear import acting, is_plain
from sana_like.layers.pointwise import PointwiseLinear
from sana_like_kernels import glu_depthwise
from sana_like_kernels.glu_mbconv.cpu import gated_feed_forward, takes


class GatedDepthwise(nn.Conv2d):
    """SiLU, depthwise 3x3 and gate in one call, holding the convolution's weights.

    The weights are read by this module's own `forward`, so that hooks on it (offloading, layerwise
    casting) see them being used.

    Args:
        channels: of the input, twice those of the output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 3, padding=1, groups=channels)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[B, Y, X, channels]` to `[B, Y, X, channels / 2]`."""
        return glu_depthwise(hidden, self.weight, self.bias)


class GLUMBConv(nn.Module):
    """1x1 expansion, SiLU, depthwise 3x3, gate, 1x1 projection (SANA, section 3.2).

    The depthwise convolution is what tells the transformer where a token is, so that it needs no
    positional encoding. No norm and no residual inside: the blocks add theirs.

    Args:
        in_channels: width of the input.
        out_channels: width of the output.
        expand_ratio: hidden width is `int(expand_ratio * in_channels)`, doubled for the gate.
    """

    def __init__(self, in_channels: int, out_channels: int, expand_ratio: float = 4.0) -> None:
        super().__init__()
        hidden = int(expand_ratio * in_channels)
        self.conv_inverted = PointwiseLinear(in_channels, 2 * hidden)
        self.conv_depth = GatedDepthwise(2 * hidden)
        self.conv_point = PointwiseLinear(hidden, out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, in_channels]` to `[B, Y, X, out_channels]`."""
        expand, depth = acting(self.conv_inverted), acting(self.conv_depth)
        point = acting(self.conv_point)
        if is_plain(expand, depth, point):
            weights = (expand.weight, expand.bias, depth.weight, depth.bias, point.weight)
            if takes(x, *weights):
                return gated_feed_forward(x, *weights)
        hidden = expand(x)  # [B, Y, X, 2h]
        return point(depth(hidden))
