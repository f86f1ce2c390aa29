"""Compute a local function of a large plane tile by tile, exactly.

A convolution's result depends on a neighbourhood only. Every tile is computed together with that
neighbourhood (its halo), which is thrown away afterwards, so tiles fit without blending: the
result is the untiled one, and there is no seam to hide.

Legend: `B` batch, `Y`, `X` plane, `C` channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from torch import Tensor


def tile_spans(length: int, core: int, halo: int) -> Iterator[tuple[slice, slice, slice]]:
    """Tiles along one axis.

    Args:
        length: cells of the axis.
        core: cells that one tile delivers.
        halo: cells that it reads beyond them on either side, where there are any.

    Yields:
        The cells a tile reads, the cells it delivers, and where those lie within what it read.

    Raises:
        ValueError: `core` is not positive or `halo` is negative.
    """
    if core < 1 or halo < 0:
        raise ValueError(f"a tile needs core >= 1 and halo >= 0, got {core} and {halo}")
    for start in range(0, length, core):
        stop = min(start + core, length)
        first, last = max(start - halo, 0), min(stop + halo, length)
        yield slice(first, last), slice(start, stop), slice(start - first, stop - first)


def map_tiles(
    plane: Tensor,
    function: Callable[[Tensor], Tensor],
    *,
    core: tuple[int, int],
    halo: int,
    scale: Fraction,
) -> Tensor:
    """Apply `function` tile by tile.

    Args:
        plane: `[B, Y, X, C]`.
        function: maps `[B, y, x, C]` to `[B, y*scale, x*scale, C']`; a result cell may depend on
            cells at most `halo` away.
        core: height and width that one tile delivers, in cells of `plane`.
        halo: reach of `function` in cells of `plane`.
        scale: size of the result over the size of `plane`; all spans times it must be whole.

    Returns:
        `[B, Y*scale, X*scale, C']`: what `function(plane)` is.
    """

    def scaled(span: slice) -> slice:
        return slice(int(span.start * scale), int(span.stop * scale))

    height, width = plane.shape[1:3]
    out: Tensor | None = None
    for read_y, deliver_y, inner_y in tile_spans(height, core[0], halo):
        for read_x, deliver_x, inner_x in tile_spans(width, core[1], halo):
            part = function(plane[:, read_y, read_x])
            if out is None:
                size = (int(height * scale), int(width * scale))
                out = part.new_empty((part.shape[0], *size, part.shape[-1]))
            part = part[:, scaled(inner_y), scaled(inner_x)]
            out[:, scaled(deliver_y), scaled(deliver_x)] = part
    assert out is not None, "a plane has no empty side"
    return out
