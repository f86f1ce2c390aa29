"""The deep-compression autoencoder of SANA, DC-AE (arXiv 2410.10733).

Legend: `B` batch, `Y`, `X` picture, `y`, `x` latent grid, `C` channels, `Z` latent channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, EncoderOutput
from diffusers.utils.accelerate_utils import apply_forward_hook
from torch import Tensor, nn

from sana_like.autoencoders.blocks import (
    Conv3x3,
    DownBlock,
    UpBlock,
    activation,
    average_channels,
    make_block,
)
from sana_like.autoencoders.tiling import map_tiles
from sana_like.layers.norm import channel_norm
from sana_like.weights.model import StrictModel


def _per_stage(value: str | Sequence[str], stages: int) -> Sequence[str]:
    return (value,) * stages if isinstance(value, str) else value


class _Checkpointed(nn.Module):
    """Runs stages, recomputing each of their blocks in the backward pass where asked to."""

    gradient_checkpointing = False
    _gradient_checkpointing_func: Callable[..., Tensor]

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return self._gradient_checkpointing_func(block, x)
        return block(x)


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
        block_types = _per_stage(block_types, stages)
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

    def forward(self, x: Tensor) -> Tensor:
        """`[B, Y, X, in]` to `[B, y, x, Z]`."""
        x = self.conv_in(x)
        for stage in self.down_blocks:
            for block in stage:
                x = self.run(block, x)
        out = self.conv_out(x)
        if self.out_shortcut:
            out = out + average_channels(x, out.shape[-1])
        return out


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
        block_types = _per_stage(block_types, stages)
        norm_types, act_fns = _per_stage(norm_types, stages), _per_stage(act_fns, stages)
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

    def forward(self, z: Tensor) -> Tensor:
        """`[B, y, x, Z]` to `[B, Y, X, out]`."""
        x = self.conv_in(z)
        if self.in_shortcut_repeats:
            x = x + z.repeat_interleave(self.in_shortcut_repeats, dim=-1)
        for stage in reversed(self.up_blocks):
            for block in stage:  # type: ignore[attr-defined]
                x = self.run(block, x)
        return self.conv_out(self.conv_act(self.norm_out(x)))


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
        ValueError: per-stage lists of different lengths, or unknown kinds of blocks or norms.
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
        scaling_factor: float = 1.0,
        norm_type: str = "rms_norm",
        expand_ratio: float = 4.0,
        resample_empty_stages: bool = False,
    ) -> None:
        super().__init__()
        _check_stages(
            encoder_block_out_channels=encoder_block_out_channels,
            encoder_layers_per_block=encoder_layers_per_block,
            encoder_qkv_multiscales=encoder_qkv_multiscales,
            decoder_block_out_channels=decoder_block_out_channels,
            decoder_layers_per_block=decoder_layers_per_block,
            decoder_qkv_multiscales=decoder_qkv_multiscales,
        )
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
        # Tiles of 512 px show seams on flat areas of 4K pictures; 1024 px do not.
        self.tile_sample_min_height = self.tile_sample_min_width = 1024
        self.tile_sample_stride_height = self.tile_sample_stride_width = 896

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
        """Work on pictures larger than a tile in tiles with feathered seams.

        Args:
            tile_sample_min_height, tile_sample_min_width: tile size in pixels; default 1024.
            tile_sample_stride_height, tile_sample_stride_width: distance of neighbouring tiles in
                pixels; default seven eighths of the tile.

        Raises:
            ValueError: a size is no multiple of the compression ratio, or a stride exceeds its
                tile.
        """
        ratio = self.spatial_compression_ratio
        height = tile_sample_min_height or self.tile_sample_min_height
        width = tile_sample_min_width or self.tile_sample_min_width
        stride_height = tile_sample_stride_height or max(height * 7 // 8 // ratio, 1) * ratio
        stride_width = tile_sample_stride_width or max(width * 7 // 8 // ratio, 1) * ratio
        for size, stride in ((height, stride_height), (width, stride_width)):
            if size % ratio or stride % ratio or not 0 < stride <= size:
                raise ValueError(
                    f"tile size and stride must be multiples of {ratio} px with stride <= size, "
                    f"got size {size} and stride {stride}"
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
        tile = (self.tile_sample_min_height, self.tile_sample_min_width)
        if self.use_tiling and (x.shape[-2] > tile[0] or x.shape[-1] > tile[1]):
            stride = (self.tile_sample_stride_height, self.tile_sample_stride_width)
            scale = Fraction(1, self.spatial_compression_ratio)
            return map_tiles(x, self._encode_whole, tile=tile, stride=stride, scale=scale)
        return self._encode_whole(x)

    def _decode(self, z: Tensor) -> Tensor:
        ratio = self.spatial_compression_ratio
        tile = (self.tile_sample_min_height // ratio, self.tile_sample_min_width // ratio)
        if self.use_tiling and (z.shape[-2] > tile[0] or z.shape[-1] > tile[1]):
            stride = (
                self.tile_sample_stride_height // ratio,
                self.tile_sample_stride_width // ratio,
            )
            return map_tiles(
                z, self._decode_whole, tile=tile, stride=stride, scale=Fraction(ratio)
            )
        return self._decode_whole(z)

    def _encode_whole(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)  # [B, Y, X, C]
        return self.encoder(x).permute(0, 3, 1, 2)  # [B, Z, y, x]

    def _decode_whole(self, z: Tensor) -> Tensor:
        z = z.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)  # [B, y, x, Z]
        return self.decoder(z).permute(0, 3, 1, 2)  # [B, C, Y, X]

    @staticmethod
    def _check_planes(planes: Tensor, channels: int, verb: str, noun: str) -> None:
        if planes.ndim != 4 or planes.shape[1] != channels or 0 in planes.shape:
            raise ValueError(
                f"{verb} needs {noun} [B, {channels}, height, width] with no empty side, "
                f"got {list(planes.shape)}"
            )


def _check_stages(**lists: Sequence[Any]) -> None:
    lengths = {name: len(value) for name, value in lists.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"an autoencoder needs one entry per stage in each list, got {lengths}")
