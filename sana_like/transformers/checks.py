"""Refusals shared by the transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sana_like.finite import NonFiniteError


def check_config(config: Any) -> None:
    """Refuse a config whose numbers cannot make a model.

    Raises:
        ValueError: what is wrong and what is legal.
    """
    names = (
        "in_channels num_attention_heads attention_head_dim num_layers num_cross_attention_heads "
        "cross_attention_head_dim cross_attention_dim caption_channels sample_size patch_size"
    )
    for name in names.split():
        value = config[name]
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a positive whole number")
    dim = config.num_attention_heads * config.attention_head_dim
    if config.cross_attention_dim != dim:
        raise ValueError(
            f"cross_attention_dim={config.cross_attention_dim} must equal num_attention_heads * "
            f"attention_head_dim = {dim}: the caption is projected to that width"
        )
    if int(config.mlp_ratio * dim) < 1:
        raise ValueError(f"mlp_ratio={config.mlp_ratio!r} leaves no hidden channel at width {dim}")
    clip = config.attention_clip
    if clip is not None and not clip > 0:
        raise ValueError(f"attention_clip={clip!r} must be positive, or None for no clip")


def watches_range(model: nn.Module, x: Tensor) -> bool:
    """Whether a forward pass has to watch for overflow: in fp16, whose range is small."""
    return x.dtype == torch.float16 and not model.training and not torch.compiler.is_compiling()


def require_finite(finite: list[Tensor]) -> None:
    """Refuse activations that left the range of fp16.

    Args:
        finite: one bool, 0-d, for the patch embedding and for each block; read at once, so that a
            device waits once.

    Raises:
        NonFiniteError: names the first layer whose output is not finite.
    """
    if not finite:
        return
    flags = torch.stack(finite).tolist()
    if not all(flags):
        index = flags.index(False) - 1
        layer = "patch_embed (or the latent)" if index < 0 else f"transformer_blocks.{index}"
        raise NonFiniteError(
            f"transformer, {layer}",
            "float16 holds at most 65504 and its output is not finite; run the model in bfloat16 "
            "or float32",
        )


def check_attention_kwargs(attention_kwargs: dict[str, Any] | None) -> None:
    """Refuse keys that nothing reads; the LoRA `scale` was taken out before.

    Raises:
        ValueError: a key is left.
    """
    if attention_kwargs:
        raise ValueError(
            f"attention_kwargs {sorted(attention_kwargs)} are not known; legal: 'scale' (of LoRA)"
        )


def check_latent(latent: Tensor, *, channels: int, patch: int) -> None:
    """Refuse a latent that the model cannot read.

    Args:
        latent: what was given.
        channels: that the model reads.
        patch: side of a patch.

    Raises:
        ValueError: what is wrong and what is legal.
    """
    if latent.ndim != 4 or latent.shape[1] != channels or 0 in latent.shape:
        raise ValueError(
            f"hidden_states has shape {tuple(latent.shape)}; this model reads [B, {channels}, "
            "height, width] with no side of zero"
        )
    if latent.shape[2] % patch or latent.shape[3] % patch:
        raise ValueError(
            f"hidden_states is {latent.shape[2]}x{latent.shape[3]}; both sides must be multiples "
            f"of the patch size {patch}"
        )
