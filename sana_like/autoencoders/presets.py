"""Architectures of the published DC-AE weights, as configurations of `AutoencoderDC`.

Sources: DC-AE (arXiv 2410.10733) and the configuration files of the published checkpoints. The
widths and layers over time of DC-AE-V are not published; `VIDEO_AUTOENCODER_PRESETS` has our own
`AutoencoderDCVideo` of its kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AutoencoderPreset:
    """One published shape.

    Attributes:
        source: the checkpoints that have it.
        config: arguments of `AutoencoderDC` or `AutoencoderDCVideo`.
        num_parameters: their total, batch-norm statistics not counted.
    """

    source: str
    config: dict[str, Any] = field(repr=False)
    num_parameters: int


def _sana() -> dict[str, Any]:
    widths = (128, 256, 512, 512, 1024, 1024)
    blocks = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
    scales = ((), (), (), (5,), (5,), (5,))
    return {
        "latent_channels": 32,
        "encoder_block_types": blocks,
        "decoder_block_types": blocks,
        "encoder_block_out_channels": widths,
        "decoder_block_out_channels": widths,
        "encoder_layers_per_block": (2, 2, 2, 3, 3, 3),
        "decoder_layers_per_block": (3, 3, 3, 3, 3, 3),
        "encoder_qkv_multiscales": scales,
        "decoder_qkv_multiscales": scales,
        "upsample_block_type": "interpolate",
        "downsample_block_type": "conv",
        "scaling_factor": 0.41407,
    }


def _imagenet(latent_channels: int, deep_stages: int, scaling_factor: float) -> dict[str, Any]:
    """The `in` (ImageNet) and `mix` family: batch norm in the first three decoder stages."""
    widths = (128, 256, 512, 512, 1024, 1024, 2048, 2048)[: 3 + deep_stages]
    blocks = ("ResBlock",) * 3 + ("EfficientViTBlock",) * deep_stages
    return {
        "latent_channels": latent_channels,
        "encoder_block_types": blocks,
        "decoder_block_types": blocks,
        "encoder_block_out_channels": widths,
        "decoder_block_out_channels": widths,
        "encoder_layers_per_block": (0, 4, 8) + (2,) * deep_stages,
        "decoder_layers_per_block": (0, 5, 10) + (2,) * deep_stages,
        "encoder_qkv_multiscales": ((),) * (3 + deep_stages),
        "decoder_qkv_multiscales": ((),) * (3 + deep_stages),
        "upsample_block_type": "pixel_shuffle",
        "downsample_block_type": "pixel_unshuffle",
        "decoder_norm_types": ("batch_norm",) * 3 + ("rms_norm",) * deep_stages,
        "decoder_act_fns": ("relu",) * 3 + ("silu",) * deep_stages,
        "scaling_factor": scaling_factor,
    }


AUTOENCODER_PRESETS: dict[str, AutoencoderPreset] = {
    "dc-ae-f32c32-sana-1.0": AutoencoderPreset("dc-ae-f32c32-sana-1.0", _sana(), 312_250_275),
    "dc-ae-f32c32-sana-1.1": AutoencoderPreset("dc-ae-f32c32-sana-1.1", _sana(), 312_250_275),
    "dc-ae-f32c32-in-1.0": AutoencoderPreset(
        "dc-ae-f32c32-in-1.0", _imagenet(32, 3, 0.3189), 323_356_460
    ),
    "dc-ae-f32c32-mix-1.0": AutoencoderPreset(
        "dc-ae-f32c32-mix-1.0", _imagenet(32, 3, 0.4552), 323_356_460
    ),
    "dc-ae-f64c128-in-1.0": AutoencoderPreset(
        "dc-ae-f64c128-in-1.0", _imagenet(128, 4, 0.2889), 676_896_140
    ),
    "dc-ae-f64c128-mix-1.0": AutoencoderPreset(
        "dc-ae-f64c128-mix-1.0", _imagenet(128, 4, 0.4538), 676_896_140
    ),
    "dc-ae-f128c512-in-1.0": AutoencoderPreset(
        "dc-ae-f128c512-in-1.0", _imagenet(512, 5, 0.4883), 1_120_682_252
    ),
    "dc-ae-f128c512-mix-1.0": AutoencoderPreset(
        "dc-ae-f128c512-mix-1.0", _imagenet(512, 5, 0.3620), 1_120_682_252
    ),
}


VIDEO_AUTOENCODER_PRESETS: dict[str, AutoencoderPreset] = {
    "dc-ae-v-f32t4c32": AutoencoderPreset(
        "our own; scaling factor of the SANA-Video paper's",
        _sana() | {"scaling_factor": 0.493},
        342_936_483,
    ),
}


def autoencoder_preset(name: str) -> AutoencoderPreset:
    """The preset called `name`.

    Raises:
        ValueError: there is none of that name; the message lists them.
    """
    presets = AUTOENCODER_PRESETS | VIDEO_AUTOENCODER_PRESETS
    if name not in presets:
        raise ValueError(f"no autoencoder preset {name!r}; there are {', '.join(presets)}")
    return presets[name]
