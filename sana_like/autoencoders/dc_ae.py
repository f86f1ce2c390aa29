"""The deep-compression autoencoder of SANA, DC-AE (arXiv 2410.10733).

Legend: `B` batch, `Y`, `X` picture, `y`, `x` latent grid, `C` channels, `Z` latent channels.
"""

# ruff: noqa: ARG002 - `register_to_config` reads the arguments of `__init__`

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, EncoderOutput
from diffusers.utils.accelerate_utils import apply_forward_hook
from torch import Tensor

from sana_like.autoencoders.base import DeepCompressionAutoencoder, check_planes


class AutoencoderDC(DeepCompressionAutoencoder):
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
        self._build()

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
        check_planes(x, self.config.in_channels, "encode", "pictures", "height, width")
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
        check_planes(z, self.config.latent_channels, "decode", "latents", "height, width")
        sample = self._sliced(z, self._decode)
        return DecoderOutput(sample=sample) if return_dict else (sample,)

    def forward(self, sample: Tensor, return_dict: bool = True) -> DecoderOutput | tuple[Tensor]:
        """Encode and decode pictures `[B, 3, Y, X]`; the result has their size."""
        latent = self.encode(sample, return_dict=False)[0]
        decoded = self.decode(latent, return_dict=False)[0]
        decoded = decoded[..., : sample.shape[-2], : sample.shape[-1]]
        return DecoderOutput(sample=decoded) if return_dict else (decoded,)

    def _encode(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)  # [B, Y, X, C]
        if self._tiled(x.shape[1], x.shape[2]):
            z = self.encoder.deep(self._shallow_encode(x))
        else:
            z = self.encoder(x)
        return z.permute(0, 3, 1, 2)  # [B, Z, y, x]

    def _decode(self, z: Tensor) -> Tensor:
        z = z.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)  # [B, y, x, Z]
        ratio = self.spatial_compression_ratio
        if self._tiled(z.shape[1] * ratio, z.shape[2] * ratio):
            x = self._shallow_decode(self.decoder.deep(z))
        else:
            x = self.decoder(z)
        return x.permute(0, 3, 1, 2)  # [B, C, Y, X]
