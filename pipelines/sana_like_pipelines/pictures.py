"""Pictures that go into a pipeline: sources, masks and controls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sana_like_pipelines.media import read_mask, read_picture
from sana_like_pipelines.sizes import cover

Picture = Image.Image | np.ndarray | Tensor | str | Path
Pictures = Picture | Sequence[Picture]
"""One picture, or one for each prompt.

Files and PIL pictures of any mode; arrays `[Y, X, 3]` or `[N, Y, X, 3]`, uint8 or floating point in
[0, 1]; tensors `[3, Y, X]` or `[N, 3, Y, X]` in [0, 1].
"""


def read_pictures(name: str, given: Pictures | None, channels: int = 3) -> list[Tensor]:
    """Pictures in the range of the models.

    Args:
        name: of the argument, for messages.
        given: see `Pictures`.
        channels: 3, or 1 for masks; see `media.read_mask` for files with transparency.

    Returns:
        `[1, channels, Y, X]` fp32 each; in [-1, 1], masks in [0, 1].

    Raises:
        ValueError: nothing, an unknown kind, another shape, or values outside the range.
    """
    if given is None:
        raise ValueError(f"{name} is missing: give a picture, or one for each prompt")
    single = isinstance(given, (Image.Image, np.ndarray, Tensor, str, Path))
    items: Sequence[Any] = [given] if single else given  # type: ignore[assignment]
    if not isinstance(items, Sequence):
        raise ValueError(f"{name} is a {type(given).__name__}: give pictures, arrays or tensors")
    if not items:
        raise ValueError(f"{name} is an empty list: give a picture, or one for each prompt")
    planes = [plane for item in items for plane in _unit_planes(name, item, channels).split(1)]
    return planes if channels == 1 else [plane * 2 - 1 for plane in planes]


def same_size(name: str, pictures: Sequence[Tensor]) -> tuple[int, int]:
    """Height and width of pictures that must have the same.

    Raises:
        ValueError: they differ.
    """
    sizes = {tuple(picture.shape[-2:]) for picture in pictures}
    if len(sizes) > 1:
        raise ValueError(
            f"the pictures of {name} have sizes {sorted(sizes)} (height, width): give height and "
            "width, or pictures of one size"
        )
    height, width = sizes.pop()
    return height, width


def fit(picture: Tensor, height: int, width: int) -> Tensor:
    """Resize `[1, C, Y, X]` so that it covers `height` x `width`, and cut the middle of it."""
    low, high = float(picture.min()), float(picture.max())
    return cover(picture, height, width, mode="bicubic").clamp(low, high)


def for_prompts(name: str, pictures: Sequence[Tensor], prompts: int) -> Tensor:
    """Pictures of one size as P rows: one for all prompts, or one for each.

    Raises:
        ValueError: another number of pictures.
    """
    if len(pictures) not in (1, prompts):
        raise ValueError(
            f"{name} has {len(pictures)} pictures for {prompts} prompts: give 1 or {prompts}"
        )
    rows = torch.cat(list(pictures))
    return rows.expand(prompts, -1, -1, -1) if len(pictures) == 1 else rows


def _unit_planes(name: str, item: Any, channels: int) -> Tensor:
    """`[N, channels, Y, X]` fp32 in [0, 1]."""
    if isinstance(item, (str, Path, Image.Image)):
        picture = read_mask(item) if channels == 1 else read_picture(item)
        pixels = torch.from_numpy(np.array(picture)).view(picture.height, picture.width, channels)
        return pixels.movedim(-1, 0)[None].float() / 255
    if isinstance(item, np.ndarray):
        planes = torch.from_numpy(np.array(item))
        planes = planes[..., None] if planes.ndim == 2 else planes
        planes = planes.movedim(-1, -3)
    elif isinstance(item, Tensor):
        planes = item.detach().cpu()
        planes = planes[None] if planes.ndim == 2 else planes
    else:
        raise ValueError(f"{name} holds a {type(item).__name__}: give pictures, arrays or tensors")
    planes = planes[None] if planes.ndim == 3 else planes
    if planes.ndim != 4 or planes.shape[1] not in (1, 3) or 0 in planes.shape:
        raise ValueError(
            f"{name} has shape {list(item.shape)}: arrays are [Y, X, 3] or [N, Y, X, 3], tensors "
            "[3, Y, X] or [N, 3, Y, X]"
        )
    planes = planes.float() / 255 if planes.dtype == torch.uint8 else planes.float()
    if not bool(((planes >= 0) & (planes <= 1)).all()):
        raise ValueError(f"{name} has values outside [0, 1]: scale them (uint8: 0 to 255)")
    if channels == 1:
        return planes.mean(dim=1, keepdim=True)
    return planes.expand(-1, 3, -1, -1)
