"""Convolutions that keep, halve or double the grid of DC-AE (arXiv 2410.10733), channels last.

Legend: `B` batch, `Y`, `X` grid, `C` channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sana_like.autoencoders import slabs
from sana_like.layers.linear import is_plain
from sana_like_kernels.inference import plain_inference


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
        if self._in_slabs(x):
            return self._slabs(x)
        out = self.conv(x)
        if self.unshuffle:
            out = space_to_channel(out)
        if self.shortcut:
            out = out + average_channels(space_to_channel(x), self.out_channels)
        return out

    def _in_slabs(self, x: Tensor) -> bool:
        conv = self.conv
        return (
            not self.unshuffle
            and x.shape[1] % 2 == x.shape[2] % 2 == 0
            and 4 * conv.in_channels // self.out_channels in (2, 4)
            and plain_inference(x, conv.weight, conv.bias)
            and is_plain(conv)
        )

    def _slabs(self, x: Tensor) -> Tensor:
        x, conv = x.contiguous(), self.conv
        out = x.new_empty(x.shape[0], x.shape[1] // 2, x.shape[2] // 2, self.out_channels)
        # The shortcut's means: of all four pixels, or of each row's two, rows in turn.
        window = (2, 2) if conv.in_channels == self.out_channels else (1, 2)

        def finish(rows: Tensor, before: Tensor, result: Tensor) -> None:
            if not self.shortcut:
                result.copy_(rows)
                return
            planes = F.avg_pool2d(before[None].permute(0, 3, 1, 2), window)
            means = planes.permute(0, 2, 3, 1)[0]
            if window[0] == 1:
                means = slabs.merge_channels(means[::2], means[1::2])
            torch.add(rows, means, out=result)

        for plane, result in zip(x, out, strict=True):
            slabs.halved_conv(plane, conv.weight, conv.bias, finish, result)
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
        if self._in_slabs(x):
            return self._slabs(x)
        if self.interpolate:
            planes = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2, mode="nearest")
            out = self.conv(planes.permute(0, 2, 3, 1))
        else:
            out = channel_to_space(self.conv(x))
        if self.shortcut:
            out = out + channel_to_space(x.repeat_interleave(self.repeats, dim=-1))
        return out

    def _in_slabs(self, x: Tensor) -> bool:
        conv = self.conv
        return (
            self.interpolate
            and self.repeats in (1, 2, 4)
            and plain_inference(x, conv.weight, conv.bias)
            and is_plain(conv)
            and x.shape[1] * x.shape[2] >= slabs.FEWEST_PIXELS
        )

    def _slabs(self, x: Tensor) -> Tensor:
        x, conv, width = x.contiguous(), self.conv, self.conv.out_channels
        out = x.new_empty(x.shape[0], 2 * x.shape[1], 2 * x.shape[2], width)
        phases = slabs.phase_weights(conv.weight)
        bias = None if conv.bias is None else conv.bias.repeat(4)

        def finish(results: list[Tensor], before: Tensor, views: list[Tensor]) -> None:
            # Channel c of a phase gets the input's channel (4c + phase) // repeats.
            copied = slabs.split_channels(before, 4 // self.repeats) if self.shortcut else []
            for phase, (rows, view) in enumerate(zip(results, views, strict=True)):
                if copied:
                    torch.add(rows, copied[phase // self.repeats], out=view)
                else:
                    view.copy_(rows)

        for plane, result in zip(x, out, strict=True):
            slabs.doubled_conv(plane, phases, bias, finish, result)
        return out
