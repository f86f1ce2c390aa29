"""Encoder and decoder of DC-AE, each split where tiling has to see the whole picture.

Legend: `B` batch, `Y`, `X` picture, `y`, `x` latent grid, `Z` latent channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sana_like.autoencoders.blocks import ResBlock, activation, make_block
from sana_like.autoencoders.resample import Conv3x3, DownBlock, UpBlock, average_channels
from sana_like.layers.norm import channel_norm, norm_end


def _per_stage(name: str, value: str | Sequence[str], stages: int) -> Sequence[str]:
    """One `value` for each stage; raises ValueError for a list of another length."""
    if isinstance(value, str):
        return (value,) * stages
    if len(value) != stages:
        raise ValueError(
            f"{name} has {len(value)} entries for {stages} stages: give one for all, or {stages}"
        )
    return value


def _first_deep_stage(block_types: Sequence[str], layers: Sequence[int]) -> int:
    """First stage that is worked on whole when tiling.

    Attention reads the whole picture, so tiles of it would differ from the whole. Stages with
    attention and those at 1/8 and below are small: a picture has 1/64 as many cells there.
    """
    kinds = enumerate(zip(block_types, layers, strict=True))
    attention = [i for i, (kind, blocks) in kinds if blocks and kind == "EfficientViTBlock"]
    return min([3, len(block_types) - 1, *attention])


def _reach(stage: nn.Module) -> int:
    """How many cells away a stage's result can depend on: one per 3x3 convolution."""
    return sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in stage.modules())


class _Checkpointed(nn.Module):
    """Runs stages, recomputing each of their blocks in the backward pass where asked to."""

    gradient_checkpointing = False
    _gradient_checkpointing_func: Callable[..., Tensor]

    def run(self, stages: Iterable[Any], x: Tensor, *, overwrite: bool = False) -> Tensor:
        """Run all blocks of all stages.

        Args:
            stages: sequences of blocks.
            x: `[B, Y, X, C]`.
            overwrite: whether the memory of `x` may be used for results.
        """
        for stage in stages:
            for block in stage:
                if self.gradient_checkpointing and torch.is_grad_enabled():
                    x = self._gradient_checkpointing_func(block, x)
                elif isinstance(block, ResBlock):
                    x = block(x, overwrite)
                else:
                    x = block(x)
                overwrite = True  # no one else holds what a block has made
        return x


class Encoder(_Checkpointed):
    """Picture to latent. Arguments as in `AutoencoderDC`, with `encoder_` left out."""

    def __init__(
        self,
        in_channels: int,
        latent_channels: int,
        *,
        head_dim: int,
        block_types: str | Sequence[str],
        widths: Sequence[int],
        layers: Sequence[int],
        multiscales: Sequence[Sequence[int]],
        unshuffle: bool,
        out_shortcut: bool,
        norm_type: str,
        expand_ratio: float,
        resample_empty_stages: bool,
    ) -> None:
        super().__init__()
        stages = len(widths)
        block_types = _per_stage("encoder_block_types", block_types, stages)
        self.conv_in: nn.Module
        if layers[0] > 0 or resample_empty_stages:
            self.conv_in = Conv3x3(in_channels, widths[0])
        else:
            self.conv_in = DownBlock(in_channels, widths[1], unshuffle, shortcut=False)
        self.down_blocks = nn.ModuleList()
        for i in range(stages):
            stage: list[nn.Module] = [
                make_block(
                    block_types[i],
                    widths[i],
                    head_dim=head_dim,
                    norm_type=norm_type,
                    act_fn="silu",
                    kernel_sizes=multiscales[i],
                    expand_ratio=expand_ratio,
                )
                for _ in range(layers[i])
            ]
            if i < stages - 1 and (layers[i] > 0 or resample_empty_stages):
                stage.append(DownBlock(widths[i], widths[i + 1], unshuffle))
            self.down_blocks.append(nn.Sequential(*stage))
        self.conv_out = Conv3x3(widths[-1], latent_channels)
        self.out_shortcut = out_shortcut
        self.split = _first_deep_stage(block_types, layers)

    def shallow(self, x: Tensor) -> Tensor:
        """The stages above the split, convolutions only: `[B, Y, X, in]` to features."""
        stages = self.down_blocks[: self.split]
        return self.run(stages, self.conv_in(x), overwrite=True)

    def deep(self, x: Tensor) -> Tensor:
        """The stages below the split: features to `[B, y, x, Z]`."""
        return self.to_latent(self.run(self.down_blocks[self.split :], x))

    def to_latent(self, x: Tensor) -> Tensor:
        """The last stage's result to `[B, y, x, Z]`."""
        out = self.conv_out(x)
        if self.out_shortcut:
            out = out + average_channels(x, out.shape[-1])
        return out

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, in]` to `[B, y, x, Z]`."""
        return self.deep(self.shallow(x))

    @property
    def halo(self) -> int:
        """Reach of `shallow` in pixels, a multiple of its cell."""
        stages = self.down_blocks[: self.split]
        reach = 1 + sum(2**i * _reach(stage) for i, stage in enumerate(stages))
        return -(-reach // 2**self.split) * 2**self.split


class Decoder(_Checkpointed):
    """Latent to picture. Arguments as in `AutoencoderDC`, with `decoder_` left out."""

    def __init__(
        self,
        out_channels: int,
        latent_channels: int,
        *,
        head_dim: int,
        block_types: str | Sequence[str],
        widths: Sequence[int],
        layers: Sequence[int],
        multiscales: Sequence[Sequence[int]],
        norm_types: str | Sequence[str],
        act_fns: str | Sequence[str],
        interpolate: bool,
        in_shortcut: bool,
        conv_act_fn: str,
        out_norm_type: str,
        expand_ratio: float,
        resample_empty_stages: bool,
    ) -> None:
        super().__init__()
        stages = len(widths)
        block_types = _per_stage("decoder_block_types", block_types, stages)
        norm_types = _per_stage("decoder_norm_types", norm_types, stages)
        act_fns = _per_stage("decoder_act_fns", act_fns, stages)
        self.conv_in = Conv3x3(latent_channels, widths[-1])
        self.in_shortcut_repeats = widths[-1] // latent_channels if in_shortcut else 0
        self.up_blocks = nn.ModuleList()
        for i in range(stages):
            stage: list[nn.Module] = []
            if i < stages - 1 and (layers[i] > 0 or resample_empty_stages):
                stage.append(UpBlock(widths[i + 1], widths[i], interpolate))
            stage += [
                make_block(
                    block_types[i],
                    widths[i],
                    head_dim=head_dim,
                    norm_type=norm_types[i],
                    act_fn=act_fns[i],
                    kernel_sizes=multiscales[i],
                    expand_ratio=expand_ratio,
                )
                for _ in range(layers[i])
            ]
            self.up_blocks.append(nn.Sequential(*stage))
        whole = layers[0] > 0 or resample_empty_stages
        width = widths[0] if whole else widths[1]
        self.norm_out = channel_norm(out_norm_type, width)
        self.conv_act = activation(conv_act_fn)
        self.conv_out: nn.Module
        if whole:
            self.conv_out = Conv3x3(width, out_channels)
        else:
            self.conv_out = UpBlock(width, out_channels, interpolate, shortcut=False)
        self.split = _first_deep_stage(block_types, layers)

    def deep(self, z: Tensor) -> Tensor:
        """The stages below the split: `[B, y, x, Z]` to features."""
        return self.run(self.up_blocks[self.split :][::-1], self.from_latent(z))

    def from_latent(self, z: Tensor) -> Tensor:
        """`[B, y, x, Z]` to the input of the last stage."""
        x = self.conv_in(z)
        if self.in_shortcut_repeats:
            x = x + z.repeat_interleave(self.in_shortcut_repeats, dim=-1)
        return x

    def shallow(self, x: Tensor) -> Tensor:
        """The stages above the split, convolutions only: features to `[B, Y, X, out]`."""
        before = x
        x = self.run(self.up_blocks[: self.split][::-1], x)
        out = None if x is before or torch.is_grad_enabled() else x
        return self.conv_out(norm_end(self.norm_out, x, activation=self.conv_act, out=out))

    def forward(self, z: Tensor) -> Tensor:
        """`[B, y, x, Z]` to `[B, Y, X, out]`."""
        return self.shallow(self.deep(z))

    @property
    def halo(self) -> int:
        """Reach of `shallow` in cells of the grid at the split."""
        # A resampling convolution works on one of its two grids; the coarse one bounds it.
        stages = self.up_blocks[: self.split]
        reach = 2 + sum(2**i * (_reach(stage) + 1) for i, stage in enumerate(stages))
        return -(-reach // 2**self.split)
