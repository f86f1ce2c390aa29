"""ReLU linear attention in plain PyTorch: the specification.

Legend: `B` batch, `N` tokens, `H` heads, `D` head width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def linear_attention_reference(
    query: Tensor, key: Tensor, value: Tensor, *, eps: float = 1e-15
) -> Tensor:
    """`o_n = sum_m v_m <phi(k_m), phi(q_n)> / (sum_m <phi(k_m), phi(q_n)> + eps)`, `phi` = ReLU.

    All sums run in fp32 (fp64 for fp64 inputs): products of ordinary activations overflow half
    precision after a thousand tokens, and `eps` is zero there. There is no 1/sqrt(D) scale and no
    mask; every query reads every key (SANA, arXiv 2410.10629, section 3.2).

    Args:
        query, key, value: `[B, N, H, D]`, any floating dtype.
        eps: added to the normaliser in fp32.

    Returns:
        `[B, N, H, D]` in the accumulation dtype; a query whose ReLU is all zero gives zeros.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    query = query.to(wide).relu().transpose(1, 2)  # [B, H, N, D]
    key = key.to(wide).relu().transpose(1, 2)
    value = value.to(wide).transpose(1, 2)
    key_value = key.transpose(-1, -2) @ value  # [B, H, D, D]
    key_sum = key.sum(dim=-2).unsqueeze(-1)  # [B, H, D, 1]
    numerator = query @ key_value  # [B, H, N, D]
    denominator = query @ key_sum  # [B, H, N, 1]
    return (numerator / (denominator + eps)).transpose(1, 2)  # [B, N, H, D]
