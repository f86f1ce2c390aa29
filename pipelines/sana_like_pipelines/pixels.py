"""Between pictures as users have them and tensors `[B, C, Y, X]`."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

OUTPUT_TYPES = ("pil", "np", "pt", "latent")


def to_pil(pictures: Tensor) -> list[Image.Image]:
    """`[B, 3, Y, X]` in [0, 1] to 8-bit pictures, rounded to the nearest level."""
    levels = (pictures.float() * 255).round().clamp(0, 255).to(torch.uint8)
    return [Image.fromarray(plane) for plane in levels.movedim(1, -1).cpu().numpy()]


def to_output(pictures: Tensor, output_type: str) -> list[Image.Image] | np.ndarray | Tensor:
    """Decoded pictures in the form asked for.

    Args:
        pictures: `[B, 3, Y, X]`, about [-1, 1].
        output_type: `"pil"`, `"np"` or `"pt"`.
    """
    unit = (pictures.float() / 2 + 0.5).clamp(0, 1)
    if output_type == "pt":
        return unit
    if output_type == "np":
        return unit.movedim(1, -1).cpu().numpy()
    return to_pil(unit)
