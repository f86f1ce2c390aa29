"""The ops for inference on a CPU: PyTorch's norm, then the modulation in place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sana_like_kernels.modulated_norm.reference import per_frame


def modulated_norm_inference(
    x: Tensor, shift: Tensor, scale: Tensor, *, rms: bool, eps: float
) -> Tensor:
    """`norm(x) * (1 + scale) + shift`, product and sum rounded once; see `modulated_norm`."""
    width = x.shape[-1:]
    normed = F.rms_norm(x, width, eps=eps) if rms else F.layer_norm(x, width, eps=eps)
    cells, factor = normed, (1 + scale).to(x.dtype)
    shift = shift.to(x.dtype)
    if per_frame(x, scale):
        cells = normed.unflatten(1, (scale.shape[1], -1))  # [B, F, N / F, C]
        factor, shift = factor.unsqueeze(2), shift.unsqueeze(2)
    torch.addcmul(shift, cells, factor, out=cells)
    return normed
