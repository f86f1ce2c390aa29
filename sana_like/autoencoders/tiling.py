"""Work on a large plane in overlapping tiles whose seams are feathered.

Legend: `B` batch, `C` channels, `Y`, `X` plane.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor


def tile_starts(length: int, tile: int, stride: int) -> list[int]:
    """First cells of the tiles that cover `length`; the last one ends at the edge.

    Raises:
        ValueError: `stride` is not in `1..tile`, so that tiles would leave gaps.
    """
    if not 1 <= stride <= tile:
        raise ValueError(f"tile stride must be in 1..{tile} (the tile size), got {stride}")
    if length <= tile:
        return [0]
    return [*range(0, length - tile, stride), length - tile]


def feather(size: int, overlap: int, at_start: bool, at_end: bool) -> Tensor:
    """Weights of a tile along one axis: one inside, a linear ramp towards each seam.

    Args:
        size: length of the tile.
        overlap: length of the ramp, at most half of `size`.
        at_start, at_end: which ends are seams and not the edge of the plane.

    Returns:
        `[size]`, fp32, all positive.
    """
    overlap = min(overlap, size // 2)
    weights = torch.ones(size)
    if overlap > 0:
        ramp = (torch.arange(overlap) + 0.5) / overlap
        if at_start:
            weights[:overlap] = ramp
        if at_end:
            weights[-overlap:] = ramp.flip(0)
    return weights


def map_tiles(
    plane: Tensor,
    function: Callable[[Tensor], Tensor],
    *,
    tile: tuple[int, int],
    stride: tuple[int, int],
    scale: Fraction,
) -> Tensor:
    """Apply `function` tile by tile and blend, so that memory follows the tile.

    Every result is weighted by its feather and divided by the sum of weights, so tiles may end
    anywhere and a constant stays constant.

    Args:
        plane: `[B, C, Y, X]`.
        function: maps `[B, C, y, x]` to `[B, C', y*scale, x*scale]`.
        tile: tile height and width in cells of `plane`.
        stride: distance of neighbouring tiles, likewise.
        scale: size of the result over the size of `plane`.

    Returns:
        `[B, C', Y*scale, X*scale]` in the dtype that `function` returns.
    """
    height, width = plane.shape[-2:]
    rows = tile_starts(height, tile[0], stride[0])
    columns = tile_starts(width, tile[1], stride[1])
    out = weight_sum = None
    for top in rows:
        for left in columns:
            part = function(plane[..., top : top + tile[0], left : left + tile[1]])
            if out is None or weight_sum is None:
                size = (int(height * scale), int(width * scale))
                wide = torch.promote_types(part.dtype, torch.float32)
                out = part.new_zeros((*part.shape[:2], *size), dtype=wide)
                weight_sum = part.new_zeros(size, dtype=wide)
            ramp_y = feather(
                part.shape[-2],
                int((tile[0] - stride[0]) * scale),
                top > 0,
                top + tile[0] < height,
            )
            ramp_x = feather(
                part.shape[-1],
                int((tile[1] - stride[1]) * scale),
                left > 0,
                left + tile[1] < width,
            )
            weights = (ramp_y[:, None] * ramp_x).to(out)  # [y, x]
            area = (
                slice(int(top * scale), int(top * scale) + part.shape[-2]),
                slice(int(left * scale), int(left * scale) + part.shape[-1]),
            )
            out[..., area[0], area[1]] += part * weights
            weight_sum[area] += weights
            dtype = part.dtype
    assert out is not None and weight_sum is not None
    return (out / weight_sum).to(dtype)
