"""From latents to pixels, without hiding what goes wrong."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sana_like.finite import require_finite
from sana_like.transformers.offload import weights_present
from sana_like_pipelines.errors import DecodeMemoryError
from sana_like_pipelines.free_memory import fits
from sana_like_pipelines.memory_terms import decoder_bytes, weight_bytes

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


@dataclass(frozen=True)
class Tiles:
    """Decoding of one picture at a time, in tiles of this many pixels."""

    height: int
    width: int

    @classmethod
    def largest(cls, vae: Any, height: int, width: int) -> Tiles:
        """The tiles that `vae` would use for a picture if its tiling was switched on."""
        return cls(min(height, vae.tile_sample_min_height), min(width, vae.tile_sample_min_width))

    def halved(self, cell: int) -> Tiles:
        """About half of each side in whole cells of `cell` px, but not below `SMALLEST_TILE`."""
        halves = (-(-side // (2 * cell)) * cell for side in (self.height, self.width))
        return Tiles(*(max(half, SMALLEST_TILE) for half in halves))

    @property
    def smallest(self) -> bool:
        """Whether halving makes them no smaller."""
        return max(self.height, self.width) <= SMALLEST_TILE


class Decoded(NamedTuple):
    """Pictures `[B, 3, Y, X]` and the tiles that were chosen; `None` where nothing had to be."""

    pictures: Tensor
    tiles: Tiles | None


def plan_tiles(vae: Any, height: int, width: int, batch: int, device: torch.device) -> Tiles | None:
    """The largest tiles that fit the free memory; `None` where no tiles are needed.

    Nothing is chosen where the user has switched tiling on.

    Args:
        vae: an `AutoencoderDC`.
        height, width: of the pictures, in pixels.
        batch: pictures decoded at once.
        device: where it is decoded.
    """
    if vae.use_tiling:
        return None
    # Weights that are offloaded come to the device first.
    missing = 0 if vae.device == device else weight_bytes(vae)
    if fits(missing + decoder_bytes(vae, height, width, batch), device):
        return None
    tiles = Tiles.largest(vae, height, width)
    while not tiles.smallest:
        with tiled(vae, tiles):
            if fits(missing + decoder_bytes(vae, height, width, batch), device):
                break
        tiles = tiles.halved(vae.spatial_compression_ratio)
    return tiles


def decode_latents(vae: Any, latents: Tensor) -> Decoded:
    """Decode, in tiles where the estimate says that the pictures do not fit the memory.

    Where it was wrong the latents are decoded once more in smaller tiles, with a warning. The
    picture is the same to rounding; tiles cost some time.

    Args:
        vae: an `AutoencoderDC`.
        latents: `[B, Z, y, x]` as the transformer sees them.

    Returns:
        `[B, 3, Y, X]`, about [-1, 1], in the dtype of `vae`; and the tiles.

    Raises:
        NonFiniteError: the picture holds NaN or infinity.
        DecodeMemoryError: not even tiles fit.
    """
    latents = latents.to(vae.dtype) / vae.config.scaling_factor
    height, width = (side * vae.spatial_compression_ratio for side in latents.shape[-2:])
    tiles = plan_tiles(vae, height, width, len(latents), latents.device)
    if tiles is not None:
        _LOG.info(
            "decoding %d pictures of %dx%d px does not fit the free memory at once: one at a time "
            "in tiles of %dx%d px", len(latents), height, width, tiles.height, tiles.width
        )  # fmt: skip
    try:
        picture = _decode(vae, latents, tiles)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        tiles = (tiles or Tiles.largest(vae, height, width)).halved(vae.spatial_compression_ratio)
        picture = _decode_again(vae, latents, tiles, error)
    require_finite(picture, "decoding of the latents")
    _warn_of_flat(picture)
    return Decoded(picture, tiles)


def _decode(vae: Any, latents: Tensor, tiles: Tiles | None) -> Tensor:
    with tiled(vae, tiles), weights_present(vae):
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


def _decode_again(vae: Any, latents: Tensor, tiles: Tiles, first: BaseException) -> Tensor:
    size = "x".join(str(side * vae.spatial_compression_ratio) for side in latents.shape[-2:])
    if vae.use_tiling:
        raise _no_memory(vae, size) from first
    message = (
        f"decoding {len(latents)} pictures of {size} px ran out of memory and is repeated in tiles "
        f"of {tiles.height}x{tiles.width} px, one picture at a time; call pipe.vae.enable_tiling() "
        "beforehand to save the attempt"
    )
    _LOG.warning(message)
    warnings.warn(message, RuntimeWarning, stacklevel=4)
    if latents.device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        return _decode(vae, latents, tiles)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        with tiled(vae, tiles):
            raise _no_memory(vae, size) from error


@contextmanager
def tiled(vae: Any, tiles: Tiles | None) -> Iterator[None]:
    """One picture at a time in `tiles`, within the block; `None` changes nothing."""
    if tiles is None:
        yield
        return
    before = {name: getattr(vae, name) for name in _TILING}
    try:
        vae.enable_slicing()
        vae.enable_tiling(tile_sample_min_height=tiles.height, tile_sample_min_width=tiles.width)
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
