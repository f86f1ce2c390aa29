"""From latents to pixels, without hiding what goes wrong."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sana_like.finite import require_finite
from sana_like.transformers.offload import weights_present
from sana_like_pipelines.errors import DecodeMemoryError

_LOG = logging.getLogger(__name__)
_TILING = (
    "use_slicing",
    "use_tiling",
    "tile_sample_min_height",
    "tile_sample_min_width",
    "tile_sample_stride_height",
    "tile_sample_stride_width",
)
# Smaller tiles would save little: weights and seams then weigh more than the picture.
SMALLEST_TILE = 256


def decode_latents(vae: Any, latents: Tensor) -> Tensor:
    """Decode.

    Where the memory does not suffice the latents are decoded once more in tiles, with a warning.
    The picture is the same; the attempt and the tiles cost time.

    Args:
        vae: an `AutoencoderDC`.
        latents: `[B, Z, y, x]` as the transformer sees them.

    Returns:
        `[B, 3, Y, X]`, about [-1, 1], in the dtype of `vae`.

    Raises:
        NonFiniteError: the picture holds NaN or infinity.
        DecodeMemoryError: not even tiles fit.
    """
    latents = latents.to(vae.dtype) / vae.config.scaling_factor
    try:
        picture = _decode(vae, latents)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        picture = _decode_tiled(vae, latents, error)
    require_finite(picture, "decoding of the latents")
    _warn_of_flat(picture)
    return picture


def _decode(vae: Any, latents: Tensor) -> Tensor:
    with weights_present(vae):
        return vae.decode(latents, return_dict=False)[0]


def _warn_of_flat(pictures: Tensor) -> None:
    """Warn of pictures of a single colour, which are more often a fault than a wish."""
    low, high = pictures.flatten(2).aminmax(dim=2)  # [B, 3]
    flat = ((high - low) < 2 / 255).all(dim=1).nonzero().flatten().tolist()
    if flat:
        places = ", ".join(str(place) for place in flat)
        warnings.warn(
            f"picture {places} of the batch is of a single colour; if the prompt does not ask for "
            "that, try another dtype, and check the weights with `sana-like inspect`",
            RuntimeWarning,
            stacklevel=4,
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on any device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error)
    return "out of memory" in text.lower() or "can't allocate memory" in text


def _decode_tiled(vae: Any, latents: Tensor, first: BaseException) -> Tensor:
    size = "x".join(str(side * vae.spatial_compression_ratio) for side in latents.shape[-2:])
    if vae.use_tiling:
        raise _no_memory(vae, size) from first
    message = (
        f"decoding {len(latents)} pictures of {size} px ran out of memory and is repeated in tiles "
        "of one picture at a time; call pipe.vae.enable_tiling() beforehand to save the attempt"
    )
    _LOG.warning(message)
    warnings.warn(message, RuntimeWarning, stacklevel=4)
    if latents.device.type == "cuda":
        torch.cuda.empty_cache()
    with _small_tiles(vae, latents):
        try:
            return _decode(vae, latents)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise _no_memory(vae, size) from error


@contextmanager
def _small_tiles(vae: Any, latents: Tensor) -> Iterator[None]:
    """Slices of one picture, in tiles of about half its side, for one decoding."""
    before = {name: getattr(vae, name) for name in _TILING}
    ratio = vae.spatial_compression_ratio
    height, width = (
        min(max(-(-side // 2) * ratio, SMALLEST_TILE), limit)
        for side, limit in zip(
            latents.shape[-2:], (vae.tile_sample_min_height, vae.tile_sample_min_width), strict=True
        )
    )
    try:
        vae.enable_slicing()
        vae.enable_tiling(tile_sample_min_height=height, tile_sample_min_width=width)
        yield
    finally:
        for name, value in before.items():
            setattr(vae, name, value)


def _no_memory(vae: Any, size: str) -> DecodeMemoryError:
    tile = f"{vae.tile_sample_min_height}x{vae.tile_sample_min_width}"
    return DecodeMemoryError(
        f"decoding {size} px does not fit the memory even in tiles of {tile} px: use smaller tiles "
        "(pipe.vae.enable_tiling(tile_sample_min_height=..., tile_sample_min_width=...)), a "
        "smaller picture, dtype=torch.bfloat16, or pipe.enable_model_cpu_offload()"
    )
