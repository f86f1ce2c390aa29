"""A picture brought to the size of a clip, in proportion: parts are cut off or added, never
squeezed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from sana_like_pipelines.pictures import fit

Fit = Literal["cut", "pad"]
FITS: tuple[Fit, ...] = ("cut", "pad")


@dataclass(frozen=True)
class Fitting:
    """What was done to a picture; sizes are (height, width) in pixels.

    Attributes:
        source: size of the picture that was given.
        target: size that it was brought to.
        how: `cut` (the target is covered) or `pad` (the picture lies inside the target).
        scale: of the picture, the same in both directions.
        cut: rows above and below, columns left and right of the source that are not seen; fractions
            of pixels occur.
        padded: rows above and below, columns left and right of the target that repeat its edge.
    """

    source: tuple[int, int]
    target: tuple[int, int]
    how: Fit
    scale: float
    cut: tuple[float, float, float, float]
    padded: tuple[int, int, int, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the recipe."""
        edges = ("top", "bottom", "left", "right")
        return {
            "source": list(self.source),
            "target": list(self.target),
            "how": self.how,
            "scale": round(self.scale, 6),
            "cut": dict(zip(edges, (round(value, 2) for value in self.cut), strict=True)),
            "padded": dict(zip(edges, self.padded, strict=True)),
        }


def fit_picture(
    picture: Tensor, height: int, width: int, how: Fit = "cut"
) -> tuple[Tensor, Fitting]:
    """Bring a picture to a size in proportion.

    Args:
        picture: `[1, C, Y, X]`, any range; the result stays within it.
        height, width: wanted size in pixels.
        how: `cut` covers the size and keeps the middle; `pad` shows all of the picture and repeats
            its edges around it.

    Returns:
        `[1, C, height, width]`, and what was done.

    Raises:
        ValueError: an unknown `how`.
    """
    if how not in FITS:
        raise ValueError(f"fit={how!r} is unknown; legal: {', '.join(FITS)}")
    rows, columns = picture.shape[-2:]
    source, target = (rows, columns), (height, width)
    if how == "cut":
        scale = max(height / rows, width / columns)
        lost_rows, lost_columns = (rows - height / scale) / 2, (columns - width / scale) / 2
        cut = (lost_rows, lost_rows, lost_columns, lost_columns)
        fitting = Fitting(source, target, how, scale, cut, (0, 0, 0, 0))
        return fit(picture, height, width), fitting
    scale = min(height / rows, width / columns)
    inner = (
        min(max(round(rows * scale), 1), height),
        min(max(round(columns * scale), 1), width),
    )
    above, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    padded = (above, height - inner[0] - above, left, width - inner[1] - left)
    fitted = F.pad(fit(picture, *inner), (padded[2], padded[3], padded[0], padded[1]), "replicate")
    return fitted, Fitting(source, target, how, scale, (0.0, 0.0, 0.0, 0.0), padded)


def size_in_proportion(picture: tuple[int, int], pixels: int, grid: int) -> tuple[int, int]:
    """The size on the model's grid, of about so many pixels, nearest in shape to a picture.

    Args:
        picture: (height, width) of the picture.
        pixels: height times width that the model was trained on.
        grid: pixels per cell of the model.

    Returns:
        (height, width), multiples of `grid`, each at least one cell.
    """
    aspect = picture[0] / picture[1]
    rows = math.sqrt(pixels * aspect) / grid
    candidates = {
        (max(high, 1), max(round(pixels / (grid * grid * max(high, 1))), 1))
        for high in range(math.floor(rows) - 1, math.ceil(rows) + 2)
    }

    def distance(cells: tuple[int, int]) -> tuple[float, float]:
        shape = abs(math.log(cells[0] / cells[1] / aspect))
        size = abs(math.log(cells[0] * cells[1] * grid * grid / pixels))
        return shape + size / 4, size

    high, wide = min(candidates, key=distance)
    return high * grid, wide * grid
