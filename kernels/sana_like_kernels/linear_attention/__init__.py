"""ReLU linear attention over all tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from sana_like_kernels.linear_attention.reference import linear_attention_reference

__all__ = ["linear_attention", "linear_attention_reference"]


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    eps: float = 1e-15,
    clip: float | None = None,
) -> Tensor:
    """ReLU linear attention, non-causal, sums in fp32, result in the dtype of `query`.

    Args:
        query, key, value: `[B, N, H, D]`.
        eps: added to the normaliser.
        clip: clamp the result to `[-clip, clip]` before it is cast, in every dtype alike. Some
            published fp16 weights were made with 65504; `None` clamps nothing.

    Returns:
        `[B, N, H, D]`.

    Raises:
        ValueError: the shapes differ or are not four-dimensional.
    """
    if query.ndim != 4 or not query.shape == key.shape == value.shape:
        raise ValueError(
            "linear_attention needs query, key and value of one shape [B, N, H, D], got "
            f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        )
    # Autocast would take the fp32 sums back to half precision.
    with torch.autocast(query.device.type, enabled=False):
        out = linear_attention_reference(query, key, value, eps=eps)
    if clip is not None:
        out = out.clamp(-clip, clip)
    return out.to(query.dtype)
