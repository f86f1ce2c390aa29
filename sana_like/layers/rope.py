"""Rotary positions of video tokens along time, height and width."""

from __future__ import annotations

import torch
from torch import Tensor

THETA = 10_000.0
NARROWEST = 6

Rope = tuple[Tensor, Tensor]


def axis_widths(head_dim: int) -> tuple[int, int, int]:
    """Channels of a head that turn with time, height and width: `(D - 4*(D//6), 2*(D//6), ...)`.

    Raises:
        ValueError: `head_dim` is odd or below 6.
    """
    if head_dim < NARROWEST or head_dim % 2:
        raise ValueError(
            f"attention_head_dim={head_dim} has no three axes of pairs; give an even width of at "
            f"least {NARROWEST}"
        )
    side = 2 * (head_dim // 6)
    return head_dim - 2 * side, side, side


def rope_3d(
    head_dim: int,
    grid: tuple[int, int, int],
    *,
    first_frame: int = 0,
    device: torch.device | str = "cpu",
) -> Rope:
    """Cosines and sines for the tokens of a grid, in the order frames, rows, columns.

    Pair i of an axis of width d turns by `position * 10000^(-2i / d)`. Angles are taken in fp64 on
    the CPU for exactly the positions asked for, so there is no table that a long video outgrows,
    and the millionth frame is as exact as the first.

    Args:
        head_dim: D, even.
        grid: (frames, height, width).
        first_frame: position of the first frame.
        device: where the tables go.

    Returns:
        Two tables `[N, D / 2]` fp32; channels 2i and 2i + 1 of a head are a pair.

    Raises:
        ValueError: see `axis_widths`.

    Source: SANA-Video (arXiv 2509.24695, section 3.2), with the split of axes of Wan
    (arXiv 2503.20314).
    """
    cosines: list[Tensor] = []
    sines: list[Tensor] = []
    for axis, (width, size) in enumerate(zip(axis_widths(head_dim), grid, strict=True)):
        first = first_frame if axis == 0 else 0
        steps = torch.arange(0, width, 2, dtype=torch.float64, device="cpu")
        places = torch.arange(first, first + size, dtype=torch.float64, device="cpu")
        angles = torch.outer(places, THETA ** (-steps / width))  # [size, d / 2]
        shape = [1, 1, 1, width // 2]
        shape[axis] = size
        for tables, table in ((cosines, angles.cos()), (sines, angles.sin())):
            tables.append(table.float().to(device).view(shape).expand(*grid, -1))
    return (
        torch.cat(cosines, dim=-1).flatten(0, 2),  # [F, Y, X, D / 2] to [N, D / 2]
        torch.cat(sines, dim=-1).flatten(0, 2),
    )
