"""RMSNorm over all heads, then rotary positions, in plain PyTorch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def norm_rope_reference(
    x: Tensor, weight: Tensor, rope: tuple[Tensor, Tensor] | None, eps: float
) -> Tensor:
    """`R_n (x_n / rms(x_n) * weight)`, rms over heads and channels (SANA-1.5, 2501.18427, 3.3).

    Args:
        x: `[B, N, H, D]`.
        weight: `[H * D]`.
        rope: cosines and sines `[N, D / 2]` of the pairs (2i, 2i + 1), the same for every head.
        eps: added to the mean square.

    Returns:
        `[B, N, H, D]` in the accumulation dtype, fp32 or wider.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x * torch.rsqrt(x.square().mean((-1, -2), keepdim=True) + eps)
    x = x * weight.to(x.dtype).unflatten(0, x.shape[-2:])
    if rope is None:
        return x
    cos, sin = (table.unsqueeze(1) for table in rope)  # [N, 1, D / 2]
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)  # [B, N, H, D / 2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
