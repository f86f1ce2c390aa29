"""RMSNorm of queries and keys over all heads, then rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from sana_like_kernels.arguments import (
    check_eps,
    check_rope,
    check_tensors,
    unit_stride,
    wide_table,
)
from sana_like_kernels.dispatch import Backend, unsupported_dtype, use_triton
from sana_like_kernels.qk_norm_rope.reference import norm_rope_reference

__all__ = ["norm_rope_reference", "qk_norm_rope"]

WIDEST = 8192


def qk_norm_rope(
    query: Tensor,
    key: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    *,
    rope: tuple[Tensor, Tensor] | None = None,
    eps: float = 1e-5,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """RMSNorm over heads and channels, times weights, then rotation; statistics in fp32.

    Args:
        query, key: `[B, N, H, D]`, any strides, of one dtype.
        query_weight, key_weight: `[H * D]`, of any floating dtype.
        rope: cosines and sines `[N, D / 2]` of the pairs (2i, 2i + 1); `None` rotates nothing.
        eps: added to the mean square, at least 0.
        backend: `auto`, `triton` or `torch`; `None` takes that of `use_backend`.

    Returns:
        Query and key, `[B, N, H, D]`, in their dtypes.

    Raises:
        ValueError: shapes or dtypes do not fit, a tensor of integers or on another device,
            negative `eps`, or `backend` cannot act.
    """
    check_tensors(
        "qk_norm_rope",
        {"query": query, "key": key},
        query_weight=query_weight,
        key_weight=key_weight,
    )
    check_eps("qk_norm_rope", eps=eps)
    pairs = ((query, query_weight), (key, key_weight))
    for x, weight in pairs:
        if x.ndim != 4 or weight.shape != (x.shape[2] * x.shape[3],):
            raise ValueError(
                "qk_norm_rope needs query and key [B, N, H, D] and weights [H * D], got "
                f"{tuple(x.shape)} and {tuple(weight.shape)}"
            )
        check_rope("qk_norm_rope", x, rope)
    obstacle = unsupported_dtype(query, key, query_weight, key_weight)
    if query.shape[2] * query.shape[3] > WIDEST or query.shape[3] % 2:
        obstacle = f"the kernels take an even head width and at most {WIDEST} channels"
    if not use_triton("qk_norm_rope", backend, query.device, obstacle):
        outs = [norm_rope_reference(x, weight, rope, eps).to(x.dtype) for x, weight in pairs]
        return outs[0], outs[1]
    from sana_like_kernels.qk_norm_rope.launch import norm_rope_op

    cos, sin = (None, None) if rope is None else map(wide_table, rope)
    results: list[torch.Tensor] = [
        norm_rope_op(unit_stride(x), weight.contiguous(), cos, sin, eps) for x, weight in pairs
    ]
    return results[0], results[1]
