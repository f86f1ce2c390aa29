"""Which model a set of published keys and shapes belongs to, and what its config must be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]

# The beginning of keys that only this class has; the first that occurs decides.
_MARKS = (
    ("controlnet_blocks.", "SanaControlNetModel"),
    ("plucker_embedder.", "SanaWMTransformer3DModel"),
    ("patch_embedding.", "SanaVideoTransformer3DModel"),
    ("patch_embed.proj.", "SanaTransformer2DModel"),
    ("decoder.temporal.", "AutoencoderDCVideo"),
    ("decoder.up_blocks.", "AutoencoderDC"),
)
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
# The heads of the linear attention are this wide in every published shape.
_HEAD_DIM = 32


@dataclass(frozen=True)
class Architecture:
    """What keys and shapes tell.

    Attributes:
        class_name: the class, or None if no known class has such keys.
        num_parameters: batch-norm statistics not counted.
        presets: published shapes of that class with as many parameters.
    """

    class_name: str | None
    num_parameters: int
    presets: tuple[str, ...]


def guess_architecture(shapes: Shapes) -> Architecture:
    """Recognise a model by its published keys and its number of parameters."""
    marks = (name for mark, name in _MARKS if any(key.startswith(mark) for key in shapes))
    return sized_architecture(next(marks, None), shapes)


def sized_architecture(class_name: str | None, shapes: Shapes) -> Architecture:
    """The architecture of a known class: its number of parameters and the presets of that size."""
    counted = (shape for key, shape in shapes.items() if not key.endswith(_STATISTICS))
    total = sum(math.prod(shape) for shape in counted)
    presets = tuple(sorted(k for k, v in _published_sizes().items() if v == (class_name, total)))
    return Architecture(class_name, total, presets)


def transformer_config(shapes: Shapes) -> dict[str, Any]:
    """Config of a transformer or ControlNet as far as its published shapes tell it.

    `sample_size` and `interpolation_scale` leave no trace in the shapes. The heads of the
    cross-attention neither; they are given for published widths only.

    Raises:
        KeyError: a tensor that every such model has is missing.
        ValueError: a tensor has another number of dimensions.
    """
    width, in_channels, patch, _ = shapes["patch_embed.proj.weight"]
    hidden = shapes["transformer_blocks.0.ff.conv_point.weight"][1]
    numbers = (re.match(r"transformer_blocks\.(\d+)\.", key) for key in shapes)
    config: dict[str, Any] = {
        "in_channels": in_channels,
        "out_channels": in_channels,
        "patch_size": patch,
        "num_attention_heads": width // _HEAD_DIM,
        "attention_head_dim": _HEAD_DIM,
        "num_layers": len({match[1] for match in numbers if match}),
        "cross_attention_dim": shapes["transformer_blocks.0.attn2.to_k.weight"][1],
        "caption_channels": shapes["caption_projection.linear_1.weight"][1],
        "mlp_ratio": _ratio(hidden, width),
        "attention_bias": "transformer_blocks.0.attn1.to_q.bias" in shapes,
    }
    if "transformer_blocks.0.attn1.norm_q.weight" in shapes:
        config["qk_norm"] = "rms_norm_across_heads"
    if any(".guidance_embedder." in key for key in shapes):
        config["guidance_embeds"] = True
    if "proj_out.weight" in shapes:
        config["out_channels"] = shapes["proj_out.weight"][0] // patch**2
    if width in _cross_heads():
        heads, head_dim = _cross_heads()[width]
        config |= {"num_cross_attention_heads": heads, "cross_attention_head_dim": head_dim}
    return config


def preset_config(name: str) -> dict[str, Any]:
    """Config of a published shape.

    Raises:
        ValueError: no such preset.
    """
    from sana_like.autoencoders.presets import AUTOENCODER_PRESETS, VIDEO_AUTOENCODER_PRESETS
    from sana_like.presets import preset

    autoencoders = AUTOENCODER_PRESETS | VIDEO_AUTOENCODER_PRESETS
    if name in autoencoders:
        return dict(autoencoders[name].config)
    return preset(name).config()


def _published_sizes() -> dict[str, tuple[str, int]]:
    """Preset name to class name and number of parameters."""
    from sana_like.autoencoders.presets import AUTOENCODER_PRESETS, VIDEO_AUTOENCODER_PRESETS
    from sana_like.presets import CONTROLNET_PRESETS, TRANSFORMER_PRESETS, VIDEO_PRESETS

    pictures = TRANSFORMER_PRESETS | CONTROLNET_PRESETS
    found = {name: (item.class_name, item.num_parameters) for name, item in pictures.items()}
    found |= {name: (item.class_name, item.num_parameters) for name, item in VIDEO_PRESETS.items()}
    for owner, presets in (
        ("AutoencoderDC", AUTOENCODER_PRESETS),
        ("AutoencoderDCVideo", VIDEO_AUTOENCODER_PRESETS),
    ):
        found |= {name: (owner, item.num_parameters) for name, item in presets.items()}
    return found


def _cross_heads() -> dict[int, tuple[int, int]]:
    """Width of a published transformer to number and width of its cross-attention heads."""
    from sana_like.presets import TRANSFORMER_PRESETS

    return {
        item.num_attention_heads * _HEAD_DIM: (
            item.num_cross_attention_heads,
            item.cross_attention_head_dim,
        )
        for item in TRANSFORMER_PRESETS.values()
    }


def _ratio(hidden: int, width: int) -> float:
    """A ratio with `int(ratio * width) == hidden`, a short one if there is one."""
    for ratio in (round(hidden / width, 3), hidden / width):
        if int(ratio * width) == hidden:
            return ratio
    return (hidden + 0.5) / width
