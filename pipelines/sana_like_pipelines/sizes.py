"""Sizes of pictures: any size is delivered exactly, worked on at the next multiple of the grid.

The picture is made a little larger than asked, on whole cells of the latent grid, and the middle of
it is delivered. Pictures that come in are padded about the middle by the same amount.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from sana_like_pipelines.whole import is_whole

# diffusers' tables of sizes, by the side of the latent that a model was trained on.
_BIN_TABLES = {
    16: "ASPECT_RATIO_512_BIN",
    32: "ASPECT_RATIO_1024_BIN",
    64: "ASPECT_RATIO_2048_BIN",
    128: "ASPECT_RATIO_4096_BIN",
}


@dataclass(frozen=True)
class PictureSize:
    """A size as asked for, and the size that is worked on, in pixels."""

    height: int
    width: int
    work_height: int
    work_width: int

    @property
    def exact(self) -> bool:
        """Whether nothing has to be cut off."""
        return (self.height, self.width) == (self.work_height, self.work_width)

    def pad(self, picture: Tensor) -> Tensor:
        """`[B, C, height, width]` to `[B, C, work_height, work_width]` by repeating the edges."""
        above = (self.work_height - self.height) // 2
        left = (self.work_width - self.width) // 2
        right = self.work_width - self.width - left
        below = self.work_height - self.height - above
        return picture if self.exact else F.pad(picture, (left, right, above, below), "replicate")

    def deliver(self, picture: Tensor) -> Tensor:
        """`[B, C, work_height, work_width]` to `[B, C, height, width]`: the middle of it."""
        if self.exact:
            return picture
        return _middle(picture, self.height, self.width)


@dataclass(frozen=True)
class BinnedSize(PictureSize):
    """A size that is made by resizing the nearest size the model was trained on."""

    def pad(self, picture: Tensor) -> Tensor:
        """Resize to cover the size worked on, and cut to it."""
        return cover(picture, self.work_height, self.work_width)

    def deliver(self, picture: Tensor) -> Tensor:
        """Resize to cover the size asked for, and cut to it."""
        return cover(picture, self.height, self.width)


def cover(picture: Tensor, height: int, width: int, mode: str = "bilinear") -> Tensor:
    """Resize `[B, C, Y, X]` so that it covers `height` x `width`, and cut the middle of it.

    Args:
        picture: any floating dtype; the work is done in fp32.
        height, width: of the result, in pixels.
        mode: `bilinear` or `bicubic`; the latter can leave the range of the picture.
    """
    if tuple(picture.shape[-2:]) == (height, width):
        return picture
    old_height, old_width = (
        _worth_resizing(side, other, wish, other_wish)
        for side, other, wish, other_wish in (
            (picture.shape[-2], picture.shape[-1], height, width),
            (picture.shape[-1], picture.shape[-2], width, height),
        )
    )
    picture = _middle(picture, old_height, old_width)
    # Whole numbers throughout: the side that limits comes out exactly, the other no smaller.
    if height * old_width >= width * old_height:
        size = (height, -(-old_width * height // old_height))
    else:
        size = (-(-old_height * width // old_width), width)
    resized = F.interpolate(
        picture.float(), size=size, mode=mode, align_corners=False, antialias=True
    ).to(picture.dtype)
    return _middle(resized, height, width)


def _worth_resizing(side: int, other: int, wish: int, other_wish: int) -> int:
    """Pixels of a side to resize: of a long strip only the middle, of which the rest is cut."""
    wanted = -(-wish * other // other_wish)
    # Twice as much leaves the edges of the cut far outside of what is kept.
    return min(side, 2 * wanted + 8 + side % 2)


def _middle(picture: Tensor, height: int, width: int) -> Tensor:
    above, left = (picture.shape[-2] - height) // 2, (picture.shape[-1] - width) // 2
    return picture[..., above : above + height, left : left + width]


def check_side(name: str, value: object, grid: int) -> int:
    """Accept a positive whole number of pixels.

    Args:
        name: of the argument, for the message.
        value: what was given.
        grid: pixels per cell of the latent grid, for the advice in the message.

    Raises:
        ValueError: anything else; the message names the nearest legal sizes.
    """
    if is_whole(value) and value > 0:
        return int(value)
    try:
        wish = max(int(float(value)), 1)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        wish = grid
    below = max(wish // grid, 1) * grid
    on_grid = f"{below}" if below >= wish else f"{below} and {below + grid}"
    raise ValueError(
        f"{name}={value!r} is no picture size: it must be an int of 1 or more pixels. Nearest "
        f"legal size: {wish}; nearest on the model's grid of {grid}: {on_grid}"
    )


def plan_size(height: object, width: object, grid: int) -> PictureSize:
    """The size to work on for the size asked for.

    Args:
        height, width: in pixels; any int from 1.
        grid: pixels per cell: compression of the autoencoder times patch size of the transformer.

    Raises:
        ValueError: a side is not a positive int.
    """
    height, width = check_side("height", height, grid), check_side("width", width, grid)
    return PictureSize(height, width, -(-height // grid) * grid, -(-width // grid) * grid)


def binned_size(height: object, width: object, grid: int, sample_size: int) -> PictureSize:
    """The published way: work on the trained size of the nearest aspect ratio, then resize.

    Args:
        height, width: in pixels.
        grid: see `plan_size`.
        sample_size: side of the latent that the transformer was trained on.

    Raises:
        ValueError: a side is not a positive int, or there is no table for `sample_size`.
    """
    size = plan_size(height, width, grid)
    if sample_size not in _BIN_TABLES:
        raise ValueError(
            f"use_resolution_binning=True needs a model with sample_size in {sorted(_BIN_TABLES)}, "
            f"this one has {sample_size}; leave it False, any size is delivered exactly"
        )
    from diffusers.pipelines.sana import pipeline_sana

    bins = getattr(pipeline_sana, _BIN_TABLES[sample_size])
    ratio = size.height / size.width
    best = min(bins, key=lambda key: abs(float(key) - ratio))
    work_height, work_width = (int(side) for side in bins[best])
    return BinnedSize(size.height, size.width, work_height, work_width)
