"""The deep-compression autoencoder of SANA, DC-AE (arXiv 2410.10733).

Legend: `B` batch, `Y`, `X` picture, `y`, `x` latent grid, `C` channels, `Z` latent channels.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, EncoderOutput
from diffusers.utils.accelerate_utils import apply_forward_hook
from torch import Tensor

from sana_like.autoencoders.coders import Decoder, Encoder
from sana_like.autoencoders.tiling import map_tiles
from sana_like.weights.model import StrictModel


class AutoencoderDC(StrictModel):
    """DC-AE: a deterministic autoencoder that shrinks pictures 32 to 128 times per side.

    Loads and saves the layout of diffusers' class of the same name. Pictures of any size are
    accepted: `encode` pads them to the grid by repeating the last row and column, `forward` crops
    the result back.

    Args:
        in_channels: channels of a picture.
        latent_channels: channels of a latent, `Z`.
        attention_head_dim: head width of `EfficientViTBlock`.
        encoder_block_types, decoder_block_types: `ResBlock`, `EfficientViTBlock` or `GLUMBConv`,
            one for all stages or one per stage, highest resolution first.
        encoder_block_out_channels, decoder_block_out_channels: width per stage.
        encoder_layers_per_block, decoder_layers_per_block: blocks per stage.
        encoder_qkv_multiscales, decoder_qkv_multiscales: kernel sizes of the aggregates per stage.
        upsample_block_type: `pixel_shuffle` or `interpolate`.
        downsample_block_type: `pixel_unshuffle` or `conv`.
        decoder_norm_types, decoder_act_fns: one for all stages or one per stage.
        encoder_out_shortcut, decoder_in_shortcut: channel shortcuts at the latent.
        decoder_conv_act_fn: activation before the last convolution.
        scaling_factor: latents times this have unit variance; the transformer works on those.
        norm_type: norm of the encoder, of `GLUMBConv` stages and of the decoder's end.
        expand_ratio: hidden width of `GLUMBConv` stages over their width.
        resample_empty_stages: stages without blocks still halve or double the grid.

    Raises:
        ValueError: per-stage lists of different lengths, unknown kinds of blocks, norms or steps,
            or a shortcut at the latent between widths that do not divide each other.
    """

    _supports_gradient_checkpointing = True
    _extension_keys: ClassVar[dict[str, Any]] = {
        "norm_type": "rms_norm",
        "expand_ratio": 4.0,
        "resample_empty_stages": False,
    }

    @register_to_config
    def __init__(
        self,
        in_channels: int = 3,
        latent_channels: int = 32,
        attention_head_dim: int = 32,
        encoder_block_types: str | tuple[str, ...] = "ResBlock",
        decoder_block_types: str | tuple[str, ...] = "ResBlock",
        encoder_block_out_channels: tuple[int, ...] = (128, 256, 512, 512, 1024, 1024),
        decoder_block_out_channels: tuple[int, ...] = (128, 256, 512, 512, 1024, 1024),
        encoder_layers_per_block: tuple[int, ...] = (2, 2, 2, 3, 3, 3),
        decoder_layers_per_block: tuple[int, ...] = (3, 3, 3, 3, 3, 3),
        encoder_qkv_multiscales: tuple[tuple[int, ...], ...] = ((), (), (), (5,), (5,), (5,)),
        decoder_qkv_multiscales: tuple[tuple[int, ...], ...] = ((), (), (), (5,), (5,), (5,)),
        upsample_block_type: str = "pixel_shuffle",
        downsample_block_type: str = "pixel_unshuffle",
        decoder_norm_types: str | tuple[str, ...] = "rms_norm",
        decoder_act_fns: str | tuple[str, ...] = "silu",
        encoder_out_shortcut: bool = True,
        decoder_in_shortcut: bool = True,
        decoder_conv_act_fn: str = "relu",
        scaling_factor: float = 1.0,  # noqa: ARG002 - read from the config by pipelines
        norm_type: str = "rms_norm",
        expand_ratio: float = 4.0,
        resample_empty_stages: bool = False,
    ) -> None:
        super().__init__()
        _check_config(self.config)
        self.encoder = Encoder(
            in_channels,
            latent_channels,
            head_dim=attention_head_dim,
            block_types=encoder_block_types,
            widths=encoder_block_out_channels,
            layers=encoder_layers_per_block,
            multiscales=encoder_qkv_multiscales,
            unshuffle=downsample_block_type == "pixel_unshuffle",
            out_shortcut=encoder_out_shortcut,
            norm_type=norm_type,
            expand_ratio=expand_ratio,
            resample_empty_stages=resample_empty_stages,
        )
        self.decoder = Decoder(
            in_channels,
            latent_channels,
            head_dim=attention_head_dim,
            block_types=decoder_block_types,
            widths=decoder_block_out_channels,
            layers=decoder_layers_per_block,
            multiscales=decoder_qkv_multiscales,
            norm_types=decoder_norm_types,
            act_fns=decoder_act_fns,
            interpolate=upsample_block_type == "interpolate",
            in_shortcut=decoder_in_shortcut,
            conv_act_fn=decoder_conv_act_fn,
            out_norm_type=norm_type,
            expand_ratio=expand_ratio,
            resample_empty_stages=resample_empty_stages,
        )
        self.spatial_compression_ratio = 2 ** (len(encoder_block_out_channels) - 1)
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

    @apply_forward_hook
    def encode(self, x: Tensor, return_dict: bool = True) -> EncoderOutput | tuple[Tensor]:
        """Encode pictures; deterministic.

        Args:
            x: `[B, 3, Y, X]` in [-1, 1], any size from 1x1.
            return_dict: give an `EncoderOutput` with `.latent` instead of a tuple.

        Returns:
            Latents `[B, Z, ceil(Y/ratio), ceil(X/ratio)]`, not yet times `scaling_factor`.

        Raises:
            ValueError: `x` has not this layout.
        """
        self._check_planes(x, self.config.in_channels, "encode", "pictures")
        ratio = self.spatial_compression_ratio
        padding = (0, -x.shape[-1] % ratio, 0, -x.shape[-2] % ratio)
        if any(padding):
            x = F.pad(x, padding, mode="replicate")
        latent = self._sliced(x, self._encode)
        return EncoderOutput(latent=latent) if return_dict else (latent,)

    @apply_forward_hook
    def decode(self, z: Tensor, return_dict: bool = True) -> DecoderOutput | tuple[Tensor]:
        """Decode latents.

        Args:
            z: `[B, Z, y, x]`, already divided by `scaling_factor`.
            return_dict: give a `DecoderOutput` with `.sample` instead of a tuple.

        Returns:
            Pictures `[B, 3, y*ratio, x*ratio]`, about [-1, 1], not clamped.

        Raises:
            ValueError: `z` has not this layout.
        """
        self._check_planes(z, self.config.latent_channels, "decode", "latents")
        sample = self._sliced(z, self._decode)
        return DecoderOutput(sample=sample) if return_dict else (sample,)

    def forward(self, sample: Tensor, return_dict: bool = True) -> DecoderOutput | tuple[Tensor]:
        """Encode and decode pictures `[B, 3, Y, X]`; the result has their size."""
        latent = self.encode(sample, return_dict=False)[0]
        decoded = self.decode(latent, return_dict=False)[0]
        decoded = decoded[..., : sample.shape[-2], : sample.shape[-1]]
        return DecoderOutput(sample=decoded) if return_dict else (decoded,)

    def _sliced(self, batch: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        if self.use_slicing and batch.shape[0] > 1:
            return torch.cat([function(one) for one in batch.split(1)])
        return function(batch)

    def _encode(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)  # [B, Y, X, C]
        if self._tiled(x.shape[1], x.shape[2]):
            core = (self.tile_sample_stride_height, self.tile_sample_stride_width)
            scale = Fraction(1, 2**self.encoder.split)
            features = map_tiles(
                x, self.encoder.shallow, core=core, halo=self.encoder.halo, scale=scale
            )
            z = self.encoder.deep(features)
        else:
            z = self.encoder(x)
        return z.permute(0, 3, 1, 2)  # [B, Z, y, x]

    def _decode(self, z: Tensor) -> Tensor:
        z = z.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)  # [B, y, x, Z]
        ratio = self.spatial_compression_ratio
        if self._tiled(z.shape[1] * ratio, z.shape[2] * ratio):
            cell = 2**self.decoder.split
            core = (self.tile_sample_stride_height // cell, self.tile_sample_stride_width // cell)
            x = map_tiles(
                self.decoder.deep(z),
                self.decoder.shallow,
                core=core,
                halo=self.decoder.halo,
                scale=Fraction(cell),
            )
        else:
            x = self.decoder(z)
        return x.permute(0, 3, 1, 2)  # [B, C, Y, X]

    def _tiled(self, height: int, width: int) -> bool:
        too_large = height > self.tile_sample_min_height or width > self.tile_sample_min_width
        return self.use_tiling and too_large

    @staticmethod
    def _check_planes(planes: Tensor, channels: int, verb: str, noun: str) -> None:
        if planes.ndim != 4 or planes.shape[1] != channels or 0 in planes.shape:
            raise ValueError(
                f"{verb} needs {noun} [B, {channels}, height, width] with no empty side, "
                f"got {list(planes.shape)}"
            )


def _check_config(config: Any) -> None:
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
