"""Refusals shared by the transformers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
        "cross_attention_head_dim cross_attention_dim caption_channels sample_size"
    )
    for name in names.split():
        value = config[name]
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a positive whole number")
    patch = config.patch_size
    sides = [patch] if isinstance(patch, int) else patch
    if len(sides) not in (1, 3) or any(not isinstance(side, int) or side < 1 for side in sides):
        raise ValueError(
            f"patch_size={patch!r} must be a positive whole number, or three (frames, height, "
            "width) for a video model"
        )
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


def check_latent(latent: Tensor, *, channels: int, patch: tuple[int, ...]) -> None:
    """Refuse a latent that the model cannot read.

    Args:
        latent: what was given.
        channels: that the model reads.
        patch: sides of a patch: (height, width), or (frames, height, width).

    Raises:
        ValueError: what is wrong and what is legal.
    """
    size = tuple(latent.shape[2:])
    if len(size) != len(patch) or latent.shape[1] != channels or 0 in latent.shape:
        names = ", ".join(("frames", "height", "width")[-len(patch) :])
        raise ValueError(
            f"hidden_states has shape {tuple(latent.shape)}; this model reads [B, {channels}, "
            f"{names}] with no side of zero"
        )
    if any(side % cell for side, cell in zip(size, patch, strict=True)):
        raise ValueError(
            f"hidden_states is {'x'.join(map(str, size))}; all sides must be multiples of the "
            f"patch size {'x'.join(map(str, patch))}"
        )


def check_residuals(
    residuals: Sequence[Tensor] | None, blocks: int, shape: tuple[int, int, int]
) -> Sequence[Tensor]:
    """Refuse ControlNet residuals that do not fit.

    Args:
        residuals: what was given; number j is added after block j + 1.
        blocks: of the transformer.
        shape: of each, `(B, N, C)`.

    Returns:
        The residuals; none for `None`.

    Raises:
        ValueError: too many, or of another shape.
    """
    if residuals is None:
        return ()
    if len(residuals) >= blocks:
        raise ValueError(
            f"{len(residuals)} ControlNet residuals for {blocks} blocks; block 0 takes none, so "
            "there must be fewer residuals than blocks"
        )
    for index, residual in enumerate(residuals):
        if tuple(residual.shape) != shape:
            raise ValueError(
                f"ControlNet residual {index} has shape {tuple(residual.shape)}, this model needs "
                f"{shape}"
            )
    return residuals


def check_perturbed(
    layers: Collection[int],
    rows: Tensor | None,
    *,
    blocks: int,
    batch: int,
    device: torch.device,
) -> Tensor | None:
    """Refuse perturbed layers and rows that do not exist.

    Args:
        layers: blocks in which rows are perturbed.
        rows: bool `[B]`; `None` for all.
        blocks: of the transformer.
        batch: B.
        device: where the rows are wanted.

    Returns:
        bool `[B]`, or `None` where there are no such layers.

    Raises:
        ValueError: a layer that there is not, rows without layers, or rows of another shape.
    """
    wrong = [layer for layer in layers if not 0 <= layer < blocks]
    if wrong:
        raise ValueError(
            f"perturbed layers {wrong} do not exist; this model has blocks 0 to {blocks - 1}"
        )
    if not layers:
        if rows is not None:
            raise ValueError("perturbed_rows were given without perturbed_layers")
        return None
    if rows is None:
        return torch.ones(batch, dtype=torch.bool, device=device)
    if rows.dtype != torch.bool or tuple(rows.shape) != (batch,):
        raise ValueError(
            f"perturbed_rows is {rows.dtype} of shape {tuple(rows.shape)}; it must be bool of "
            f"shape ({batch},)"
        )
    return rows.to(device)
