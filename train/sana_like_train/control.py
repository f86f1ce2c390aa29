"""Control pictures that are made from the training pictures themselves."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def edges(pictures: Tensor) -> Tensor:
    """Soft edges, white on black: the length of the Sobel gradient of the grey picture.

    Args:
        pictures: `[B, 3, Y, X]` in [-1, 1].

    Returns:
        The same shape, dtype and range; three equal channels.
    """
    weights = torch.tensor([0.299, 0.587, 0.114], device=pictures.device, dtype=pictures.dtype)
    grey = (pictures * weights[:, None, None]).sum(1, keepdim=True)  # [B, 1, Y, X]
    smooth = grey.new_tensor([1.0, 2.0, 1.0])
    slope = grey.new_tensor([-1.0, 0.0, 1.0])
    kernels = torch.stack([smooth[:, None] * slope, slope[:, None] * smooth])[:, None] / 4
    gradient = F.conv2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), kernels)  # [B, 2, Y, X]
    length = gradient.norm(dim=1, keepdim=True).clamp(max=1)
    return (2 * length - 1).expand_as(pictures)
