"""AdaLN modulation in plain PyTorch: the specification."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def modulated_norm_reference(
    x: Tensor, shift: Tensor, scale: Tensor, *, rms: bool, eps: float
) -> Tensor:
    """`norm(x) * (1 + scale) + shift`, the norm without weights (DiT, arXiv 2212.09748).

    Args:
        x: `[B, N, C]`.
        shift, scale: broadcastable to `x`, e.g. `[B, 1, C]`, or `[B, F, C]` where frame `f` is
            tokens `f * N / F` to `(f + 1) * N / F`.
        rms: RMSNorm instead of LayerNorm.
        eps: of the variance or the mean square.

    Returns:
        `[B, N, C]`.
    """
    normed = F.rms_norm(x, x.shape[-1:], eps=eps) if rms else F.layer_norm(x, x.shape[-1:], eps=eps)
    if not per_frame(x, scale):
        return normed * (1 + scale) + shift
    frames = normed.unflatten(1, (scale.shape[1], -1))  # [B, F, N / F, C]
    return (frames * (1 + scale.unsqueeze(2)) + shift.unsqueeze(2)).flatten(1, 2)


def gated_residual_reference(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """`x + gate * branch`, all `[B, N, C]`, the gate also `[B, F, C]`."""
    if not per_frame(x, gate):
        return x + gate * branch
    frames = branch.unflatten(1, (gate.shape[1], -1))  # [B, F, N / F, C]
    return x + (gate.unsqueeze(2) * frames).flatten(1, 2)


def per_frame(x: Tensor, vectors: Tensor) -> bool:
    """Whether `vectors [B, F, C]` stand for runs of tokens, so that plain broadcasting fails."""
    return vectors.ndim == 3 and vectors.shape[1] not in (1, x.shape[1])
