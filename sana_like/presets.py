"""Architectures of the published SANA transformers.

Sources: SANA (arXiv 2410.10629, table 1), SANA-1.5 (2501.18427), SANA-Sprint (2503.09641),
SANA-Video (2509.24695) and the configuration files of the published checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_NORM = "rms_norm_across_heads"


@dataclass(frozen=True)
class TransformerPreset:
    """One published shape of `SanaTransformer2DModel` or `SanaControlNetModel`.

    Attributes:
        source: the checkpoints or the paper that have it.
        num_parameters: their total.
        num_layers: number of blocks.
        num_attention_heads: of the linear attention, each 32 wide.
        num_cross_attention_heads, cross_attention_head_dim: of the cross-attention.
        sample_size: side of the latent it was trained on; a latent pixel is 32 pixels.
        interpolation_scale: of the table of positions; `None` for no table.
        qk_norm: norm of queries and keys, or `None`.
        guidance_embeds: whether the guidance scale is embedded.
        controlnet: whether it is a ControlNet.
    """

    source: str
    num_parameters: int
    num_layers: int
    num_attention_heads: int
    num_cross_attention_heads: int
    cross_attention_head_dim: int
    sample_size: int = 32
    interpolation_scale: float | None = None
    qk_norm: str | None = None
    guidance_embeds: bool = False
    controlnet: bool = False

    @property
    def class_name(self) -> str:
        """The class that has this shape."""
        return "SanaControlNetModel" if self.controlnet else "SanaTransformer2DModel"

    def config(self) -> dict[str, Any]:
        """Arguments of the model's constructor; what all shapes share is its default."""
        config: dict[str, Any] = {
            "num_layers": self.num_layers,
            "num_attention_heads": self.num_attention_heads,
            "attention_head_dim": 32,
            "num_cross_attention_heads": self.num_cross_attention_heads,
            "cross_attention_head_dim": self.cross_attention_head_dim,
            "cross_attention_dim": 32 * self.num_attention_heads,
            "sample_size": self.sample_size,
            "interpolation_scale": self.interpolation_scale,
        }
        if not self.controlnet:
            config |= {"qk_norm": self.qk_norm, "guidance_embeds": self.guidance_embeds}
        return config


@dataclass(frozen=True)
class VideoPreset:
    """One published shape of `SanaVideoTransformer3DModel`; the three differ in their latents.

    Attributes:
        source: the checkpoints or the paper that have it.
        num_parameters: their total.
        channels: of the latent.
        patch_size: (frames, height, width) of a patch.
        sample_size: height of the latent it was trained on.
        autoencoder: what its latents are made by: frames and pixels of a latent pixel.
    """

    source: str
    num_parameters: int
    channels: int
    patch_size: tuple[int, int, int]
    sample_size: int
    autoencoder: str

    class_name = "SanaVideoTransformer3DModel"

    def config(self) -> dict[str, Any]:
        """Arguments of the model's constructor; what all shapes share is its default."""
        return {
            "in_channels": self.channels,
            "out_channels": self.channels,
            "patch_size": self.patch_size,
            "sample_size": self.sample_size,
            "mlp_ratio": 3.0,
        }


def _narrow(source: str, num_parameters: int, num_layers: int = 28, **other: Any) -> Any:
    """The 0.6B family, width 1152."""
    return TransformerPreset(source, num_parameters, num_layers, 36, 16, 72, **other)


def _wide(source: str, num_parameters: int, num_layers: int = 20, **other: Any) -> Any:
    """The 1.6B family and its deeper relatives, width 2240."""
    return TransformerPreset(source, num_parameters, num_layers, 70, 20, 112, **other)


TRANSFORMER_PRESETS: dict[str, TransformerPreset] = {
    "sana-0.6b-512": _narrow("Sana_600M_512px", 591_747_872, sample_size=16),
    "sana-0.6b-1024": _narrow("Sana_600M_1024px", 591_747_872),
    "sana-1.6b-512": _wide("Sana_1600M_512px", 1_604_462_752, sample_size=16),
    "sana-1.6b-1024": _wide("Sana_1600M_1024px", 1_604_462_752),
    "sana-1.6b-2k": _wide(
        "Sana_1600M_2Kpx_BF16", 1_604_462_752, sample_size=64, interpolation_scale=1.0
    ),
    "sana-1.6b-4k": _wide(
        "Sana_1600M_4Kpx_BF16", 1_604_462_752, sample_size=128, interpolation_scale=2.0
    ),
    "sana-1.5-1.6b-1024": _wide("SANA1.5_1.6B_1024px", 1_604_641_952, qk_norm=_NORM),
    # No weights of the next two are published: they are the 4.8B model pruned to 30 and to 40
    # blocks (SANA-1.5, section 2.2).
    "sana-1.5-2.4b-1024": _wide("SANA-1.5 paper", 2_383_937_952, num_layers=30, qk_norm=_NORM),
    "sana-1.5-3.2b-1024": _wide("SANA-1.5 paper", 3_163_233_952, num_layers=40, qk_norm=_NORM),
    "sana-1.5-4.8b-1024": _wide("SANA1.5_4.8B_1024px", 4_721_825_952, num_layers=60, qk_norm=_NORM),
    "sana-sprint-0.6b-1024": _narrow(
        "Sana_Sprint_0.6B_1024px", 593_501_216, qk_norm=_NORM, guidance_embeds=True
    ),
    "sana-sprint-1.6b-1024": _wide(
        "Sana_Sprint_1.6B_1024px", 1_610_237_472, qk_norm=_NORM, guidance_embeds=True
    ),
}

CONTROLNET_PRESETS: dict[str, TransformerPreset] = {
    "sana-controlnet-0.6b-1024": _narrow(
        "Sana_600M_1024px_ControlNet_HED", 168_765_696, num_layers=7, controlnet=True
    ),
    "sana-controlnet-1.6b-1024": _wide(
        "Sana_1600M_1024px_BF16_ControlNet_HED", 631_576_960, num_layers=7, controlnet=True
    ),
}

VIDEO_PRESETS: dict[str, VideoPreset] = {
    "sana-video-2b-480p": VideoPreset(
        "SANA-Video_2B_480p", 2_056_862_144, 16, (1, 2, 2), 30, "Wan 2.1, 4x8x8"
    ),
    "sana-video-2b-720p": VideoPreset(
        "SANA-Video_2B_720p", 2_057_148_928, 128, (1, 1, 1), 22, "LTX-2, 8x32x32"
    ),
    "sana-video-2b-720p-dc-ae-v": VideoPreset(
        "SANA-Video paper", 2_056_718_752, 32, (1, 1, 1), 22, "DC-AE-V, 4x32x32"
    ),
}


def preset(name: str) -> TransformerPreset | VideoPreset:
    """The preset of this name.

    Raises:
        ValueError: no such name; the message lists those that exist.
    """
    presets = TRANSFORMER_PRESETS | CONTROLNET_PRESETS | VIDEO_PRESETS
    if name not in presets:
        raise ValueError(f"no preset {name!r}; there are {', '.join(presets)}")
    return presets[name]
