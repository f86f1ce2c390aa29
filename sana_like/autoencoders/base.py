"""What the autoencoders of pictures and of clips have in common: building, slicing, tiling.

Legend: `B` batch, `Y`, `X` picture, `C` channels.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from sana_like.autoencoders.coders import Decoder, Encoder
from sana_like.autoencoders.tiling import map_tiles
from sana_like.weights.model import StrictModel


class DeepCompressionAutoencoder(StrictModel):
    """Encoder and decoder that `self.config` describes; subclasses write `encode` and `decode`."""

    _supports_gradient_checkpointing = True
    encoder: Any
    decoder: Any

    def _build(
        self,
        encoder: Callable[..., Encoder] = Encoder,
        decoder: Callable[..., Decoder] = Decoder,
    ) -> None:
        """Create the modules.

        Args:
            encoder, decoder: classes, or what makes one of the same arguments.

        Raises:
            ValueError: the config does not describe an autoencoder.
        """
        config: Any = self.config
        check_config(config)
        shared = {
            "head_dim": config.attention_head_dim,
            "expand_ratio": config.expand_ratio,
            "resample_empty_stages": config.resample_empty_stages,
        }
        self.encoder = encoder(
            config.in_channels,
            config.latent_channels,
            block_types=config.encoder_block_types,
            widths=config.encoder_block_out_channels,
            layers=config.encoder_layers_per_block,
            multiscales=config.encoder_qkv_multiscales,
            unshuffle=config.downsample_block_type == "pixel_unshuffle",
            out_shortcut=config.encoder_out_shortcut,
            norm_type=config.norm_type,
            **shared,
        )
        self.decoder = decoder(
            config.in_channels,
            config.latent_channels,
            block_types=config.decoder_block_types,
            widths=config.decoder_block_out_channels,
            layers=config.decoder_layers_per_block,
            multiscales=config.decoder_qkv_multiscales,
            norm_types=config.decoder_norm_types,
            act_fns=config.decoder_act_fns,
            interpolate=config.upsample_block_type == "interpolate",
            in_shortcut=config.decoder_in_shortcut,
            conv_act_fn=config.decoder_conv_act_fn,
            out_norm_type=config.norm_type,
            **shared,
        )
        self.spatial_compression_ratio = 2 ** (len(config.encoder_block_out_channels) - 1)
        self.temporal_compression_ratio = 1
        self.use_slicing = False
        self.use_tiling = False
        self.tile_sample_min_height = self.tile_sample_min_width = 1024
        self.tile_sample_stride_height = self.tile_sample_stride_width = 1024

    def enable_slicing(self) -> None:
        """Work on one picture of a batch at a time."""
        self.use_slicing = True

    def disable_slicing(self) -> None:
        """Work on whole batches."""
        self.use_slicing = False

    def enable_tiling(
        self,
        tile_sample_min_height: int | None = None,
        tile_sample_min_width: int | None = None,
        tile_sample_stride_height: int | None = None,
        tile_sample_stride_width: int | None = None,
    ) -> None:
        """Compute the high resolutions of large pictures tile by tile.

        The result is that of the whole picture up to rounding, without seams: tiles are computed
        with all of the surrounding that they depend on, and attention, which depends on the whole
        picture, runs at 1/8 of the resolution and below on the whole.

        Args:
            tile_sample_min_height, tile_sample_min_width: pictures larger than this, in pixels,
                are tiled; default: as set before, at first 1024.
            tile_sample_stride_height, tile_sample_stride_width: pixels that one tile delivers;
                default: as many.

        Raises:
            ValueError: a size is not a positive multiple of the compression ratio.
        """
        ratio = self.spatial_compression_ratio
        height, width = (
            size if wish is None else wish
            for wish, size in (
                (tile_sample_min_height, self.tile_sample_min_height),
                (tile_sample_min_width, self.tile_sample_min_width),
            )
        )
        stride_height = height if tile_sample_stride_height is None else tile_sample_stride_height
        stride_width = width if tile_sample_stride_width is None else tile_sample_stride_width
        for size in (height, width, stride_height, stride_width):
            if not isinstance(size, int) or size < ratio or size % ratio:
                raise ValueError(
                    f"tile sizes must be positive multiples of {ratio} px, got {size!r}"
                )
        self.tile_sample_min_height, self.tile_sample_min_width = height, width
        self.tile_sample_stride_height, self.tile_sample_stride_width = stride_height, stride_width
        self.use_tiling = True

    def disable_tiling(self) -> None:
        """Work on whole pictures."""
        self.use_tiling = False

    def _sliced(self, batch: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        if self.use_slicing and batch.shape[0] > 1:
            return torch.cat([function(one) for one in batch.split(1)])
        return function(batch)

    def _tiled(self, height: int, width: int) -> bool:
        too_large = height > self.tile_sample_min_height or width > self.tile_sample_min_width
        return self.use_tiling and too_large

    def _shallow_encode(self, x: Tensor) -> Tensor:
        """Pictures `[B, Y, X, C]` to the encoder's features at its split, tile by tile."""
        return map_tiles(
            x,
            self.encoder.shallow,
            core=(self.tile_sample_stride_height, self.tile_sample_stride_width),
            halo=self.encoder.halo,
            scale=Fraction(1, 2**self.encoder.split),
        )

    def _shallow_decode(self, features: Tensor) -> Tensor:
        """The decoder's features at its split to pictures `[B, Y, X, C]`, tile by tile."""
        cell = 2**self.decoder.split
        return map_tiles(
            features,
            self.decoder.shallow,
            core=(self.tile_sample_stride_height // cell, self.tile_sample_stride_width // cell),
            halo=self.decoder.halo,
            scale=Fraction(cell),
        )


def check_planes(planes: Tensor, channels: int, verb: str, noun: str, axes: str) -> None:
    """Refuse a tensor of another layout.

    Args:
        planes: what was given.
        channels: that its second axis must have.
        verb, noun: for the message: what needs which tensors.
        axes: names of the axes after the channels.

    Raises:
        ValueError: what was given and what is legal.
    """
    rank = 2 + len(axes.split(", "))
    if planes.ndim != rank or planes.shape[1] != channels or 0 in planes.shape:
        raise ValueError(
            f"{verb} needs {noun} [B, {channels}, {axes}] with no empty side, "
            f"got {list(planes.shape)}"
        )


def check_config(config: Any) -> None:
    """Refuse a config that does not describe an autoencoder.

    Raises:
        ValueError: what is wrong and what is legal.
    """
    stages = {
        key: len(config[key])
        for side in ("encoder", "decoder")
        for key in (
            f"{side}_block_out_channels",
            f"{side}_layers_per_block",
            f"{side}_qkv_multiscales",
        )
    }
    if len(set(stages.values())) != 1:
        raise ValueError(f"an autoencoder needs one entry per stage in each list, got {stages}")
    for key, kinds in (
        ("upsample_block_type", ("pixel_shuffle", "interpolate")),
        ("downsample_block_type", ("pixel_unshuffle", "conv")),
    ):
        if config[key] not in kinds:
            raise ValueError(f"{key} is {config[key]!r}; it must be {' or '.join(kinds)}")
    for key, widths in (
        ("encoder_out_shortcut", config.encoder_block_out_channels),
        ("decoder_in_shortcut", config.decoder_block_out_channels),
    ):
        if config[key] and widths[-1] % config.latent_channels:
            raise ValueError(
                f"{key} needs a last stage whose width is a multiple of latent_channels, got "
                f"widths {tuple(widths)} and {config.latent_channels}; set {key}=False"
            )
