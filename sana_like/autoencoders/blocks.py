"""Blocks of DC-AE (arXiv 2410.10733), channels last from end to end.

Legend: `B` batch, `Y`, `X` grid, `C` channels, `G` attention groups, `D` head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sana_like.layers.glu_mbconv import GLUMBConv
from sana_like.layers.norm import channel_norm
from sana_like_kernels import linear_attention


def activation(name: str) -> nn.Module:
    """The activation called `name`; raises ValueError for an unknown one."""
    kinds: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "silu": nn.SiLU, "relu6": nn.ReLU6}
    if name not in kinds:
        raise ValueError(f"activation {name!r} is unknown; use one of {sorted(kinds)}")
    return kinds[name]()


class Conv3x3(nn.Conv2d):
    """A zero-padded 3x3 convolution over `[B, Y, X, C]`, with the keys of `nn.Conv2d`."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int = 1, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, 3, stride, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, in]` to `[B, Y/stride, X/stride, out]`."""
        # The permuted view is a channels-last [B, C, Y, X] tensor: nothing is copied.
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def space_to_channel(x: Tensor, factor: int = 2) -> Tensor:
    """Pixel-unshuffle: `[B, Y, X, C]` to `[B, Y/f, X/f, C*f*f]`, channel index `(c, dy, dx)`."""
    # PyTorch's own kernel keeps channels last, in half the time of a six-dimensional permutation.
    return F.pixel_unshuffle(x.permute(0, 3, 1, 2), factor).permute(0, 2, 3, 1)


def channel_to_space(x: Tensor, factor: int = 2) -> Tensor:
    """Pixel-shuffle: `[B, Y, X, C*f*f]` to `[B, Y*f, X*f, C]`, channel index `(c, dy, dx)`."""
    return F.pixel_shuffle(x.permute(0, 3, 1, 2), factor).permute(0, 2, 3, 1)


def average_channels(x: Tensor, out_channels: int) -> Tensor:
    """Mean over consecutive groups of channels: `[..., C]` to `[..., out_channels]`."""
    return x.unflatten(-1, (out_channels, -1)).mean(-1)


class ResBlock(nn.Module):
    """Two 3x3 convolutions, a norm and a residual."""

    def __init__(self, channels: int, norm_type: str, act_fn: str) -> None:
        super().__init__()
        self.conv1 = Conv3x3(channels, channels)
        self.nonlinearity = activation(act_fn)
        self.conv2 = Conv3x3(channels, channels, bias=False)
        self.norm = channel_norm(norm_type, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, C]` to the same shape."""
        return x + self.norm(self.conv2(self.nonlinearity(self.conv1(x))))


class ResidualGLUMBConv(GLUMBConv):
    """GLUMBConv with a norm after it and a residual around it.

    Args:
        channels: width of input and output.
        norm_type: norm after the projection.
        expand_ratio: hidden width over `channels`.
    """

    def __init__(self, channels: int, norm_type: str = "rms_norm", expand_ratio: float = 4) -> None:
        super().__init__(channels, channels, expand_ratio)
        self.norm = channel_norm(norm_type, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, C]` to the same shape."""
        return x + self.norm(super().forward(x))


class MultiscaleProjection(nn.Module):
    """Depthwise KxK then grouped 1x1 over the concatenated q, k and v."""

    def __init__(self, channels: int, heads: int, kernel_size: int) -> None:
        super().__init__()
        self.proj_in = nn.Conv2d(
            channels, channels, kernel_size, padding=kernel_size // 2, groups=channels, bias=False
        )
        self.proj_out = nn.Conv2d(channels, channels, 1, groups=3 * heads, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, 3C]` to the same shape."""
        return self.proj_out(self.proj_in(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)


class MultiscaleLinearAttention(nn.Module):
    """ReLU linear attention over q, k, v and their multi-scale aggregates (EfficientViT).

    `to_q`, `to_k`, `to_v` are names only: their outputs are concatenated and every group of `3D`
    consecutive channels is one head's q, k and v. Grids of at most `D` cells take the quadratic
    form, which is cheaper there and is what the published weights were made with.

    Args:
        channels: width of input and output.
        head_dim: `D`.
        norm_type: norm after the projection.
        kernel_sizes: one aggregate per kernel size.

    Raises:
        ValueError: `channels` is less than one head.
    """

    def __init__(
        self, channels: int, head_dim: int, norm_type: str, kernel_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        heads = channels // head_dim
        if heads < 1:
            raise ValueError(
                f"attention_head_dim is {head_dim}, wider than a stage of {channels} channels with "
                "EfficientViTBlock"
            )
        inner = heads * head_dim
        self.to_q = nn.Linear(channels, inner, bias=False)
        self.to_k = nn.Linear(channels, inner, bias=False)
        self.to_v = nn.Linear(channels, inner, bias=False)
        self.to_qkv_multiscale = nn.ModuleList(
            MultiscaleProjection(3 * inner, heads, size) for size in kernel_sizes
        )
        self.to_out = nn.Linear(inner * (1 + len(kernel_sizes)), channels, bias=False)
        self.norm_out = channel_norm(norm_type, channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, C]` to the same shape."""
        b, y, x_, _ = x.shape
        qkv = torch.cat([self.to_q(x), self.to_k(x), self.to_v(x)], dim=-1)  # [B, Y, X, 3C]
        scales = [qkv, *(scale(qkv) for scale in self.to_qkv_multiscale)]
        groups = torch.cat(scales, dim=-1).reshape(b, y * x_, -1, 3 * self.head_dim)
        query, key, value = groups.chunk(3, dim=-1)  # each [B, N, G, D]
        if y * x_ > self.head_dim:
            out = linear_attention(query, key, value)
        else:
            out = quadratic_attention(query, key, value)
        out = self.to_out(out.reshape(b, y, x_, -1))
        return x + self.norm_out(out)


def quadratic_attention(query: Tensor, key: Tensor, value: Tensor, eps: float = 1e-15) -> Tensor:
    """The same attention with explicit scores; all sums in fp32, where half precision overflows.

    Args:
        query, key, value: `[B, N, G, D]`.
        eps: added to the normaliser.

    Returns:
        `[B, N, G, D]` in the dtype of `value`.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    # Autocast would take the fp32 sums back to half precision.
    with torch.autocast(query.device.type, enabled=False):
        scores = torch.einsum("bngd,bmgd->bgnm", query.to(wide).relu(), key.to(wide).relu())
        scores = scores / (scores.sum(-1, keepdim=True) + eps)
        return torch.einsum("bgnm,bmgd->bngd", scores, value.to(wide)).to(value.dtype)


class EfficientViTBlock(nn.Module):
    """Multi-scale linear attention, then GLUMBConv."""

    def __init__(
        self, channels: int, head_dim: int, norm_type: str, kernel_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.attn = MultiscaleLinearAttention(channels, head_dim, norm_type, kernel_sizes)
        self.conv_out = ResidualGLUMBConv(channels)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, C]` to the same shape."""
        return self.conv_out(self.attn(x))


class DownBlock(nn.Module):
    """Halve the grid: 3x3 convolution plus the averaging pixel-unshuffle shortcut.

    Args:
        in_channels, out_channels: widths.
        unshuffle: convolve first and move space to channels, instead of a stride of two.
        shortcut: add the parameter-free shortcut (DC-AE, residual autoencoding).
    """

    def __init__(
        self, in_channels: int, out_channels: int, unshuffle: bool, shortcut: bool = True
    ) -> None:
        super().__init__()
        self.unshuffle = unshuffle
        self.shortcut = shortcut
        self.out_channels = out_channels
        if unshuffle:
            self.conv = Conv3x3(in_channels, out_channels // 4)
        else:
            self.conv = Conv3x3(in_channels, out_channels, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, in]` to `[B, Y/2, X/2, out]`."""
        out = self.conv(x)
        if self.unshuffle:
            out = space_to_channel(out)
        if self.shortcut:
            out = out + average_channels(space_to_channel(x), self.out_channels)
        return out


class UpBlock(nn.Module):
    """Double the grid: 3x3 convolution plus the channel-duplicating pixel-shuffle shortcut.

    Args:
        in_channels, out_channels: widths.
        interpolate: nearest-neighbour upsampling before the convolution, instead of a shuffle.
        shortcut: add the parameter-free shortcut.
    """

    def __init__(
        self, in_channels: int, out_channels: int, interpolate: bool, shortcut: bool = True
    ) -> None:
        super().__init__()
        self.interpolate = interpolate
        self.shortcut = shortcut
        self.repeats = out_channels * 4 // in_channels
        self.conv = Conv3x3(in_channels, out_channels if interpolate else out_channels * 4)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, in]` to `[B, 2Y, 2X, out]`."""
        if self.interpolate:
            planes = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2, mode="nearest")
            out = self.conv(planes.permute(0, 2, 3, 1))
        else:
            out = channel_to_space(self.conv(x))
        if self.shortcut:
            out = out + channel_to_space(x.repeat_interleave(self.repeats, dim=-1))
        return out


def make_block(
    kind: str,
    channels: int,
    *,
    head_dim: int,
    norm_type: str,
    act_fn: str,
    kernel_sizes: Sequence[int],
    expand_ratio: float,
) -> nn.Module:
    """The block called `kind`: `ResBlock`, `EfficientViTBlock` or `GLUMBConv`.

    Raises:
        ValueError: another `kind`.
    """
    if kind == "ResBlock":
        return ResBlock(channels, norm_type, act_fn)
    if kind == "EfficientViTBlock":
        return EfficientViTBlock(channels, head_dim, norm_type, kernel_sizes)
    if kind == "GLUMBConv":
        return ResidualGLUMBConv(channels, norm_type, expand_ratio)
    raise ValueError(
        f"block type {kind!r} is unknown; use ResBlock, EfficientViTBlock or GLUMBConv"
    )
