"""ReLU linear attention in plain PyTorch: the specification.

Legend: `B` batch, `N` tokens, `H` heads, `D` head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

Rope = tuple[Tensor, Tensor]
Norms = tuple[Tensor, Tensor]
State = tuple[Tensor, Tensor]


def linear_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    eps: float = 1e-15,
    rope: Rope | None = None,
    norms: Norms | None = None,
    norm_eps: float = 1e-5,
) -> Tensor:
    """`o_n = sum_m v_m <phi(k_m), phi(q_n)> / (sum_m <phi(k_m), phi(q_n)> + eps)`, `phi` = ReLU.

    All sums run in fp32 (fp64 for fp64 inputs): products of ordinary activations overflow half
    precision after a thousand tokens, and `eps` is zero there. There is no 1/sqrt(D) scale and no
    mask; every query reads every key (SANA, arXiv 2410.10629, section 3.2). With positions, `phi`
    is rotated in the numerator only: rotated features can have negative products, and the
    normaliser must not be zero (SANA-Video, arXiv 2509.24695, section 3.2).

    Args:
        query, key, value: `[B, N, H, D]`, any floating dtype.
        eps: added to the normaliser in fp32.
        rope: cosines and sines `[N, D / 2]`; channels `2i` and `2i + 1` are a pair.
        norms: weights `[H * D]` of RMS norms of query and key over all heads, before `phi`.
        norm_eps: of those norms.

    Returns:
        `[B, N, H, D]` in the accumulation dtype; a query whose ReLU is all zero gives zeros.
    """
    out, _ = stateful_reference(
        query, key, value, None, eps=eps, rope=rope, norms=norms, norm_eps=norm_eps
    )
    return out


def stateful_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: State | None,
    *,
    eps: float,
    rope: Rope | None = None,
    norms: Norms | None = None,
    norm_eps: float = 1e-5,
) -> tuple[Tensor, State]:
    """The same, where queries also read the tokens that `state` sums up, and with the new state.

    Args:
        query, key, value, eps, rope, norms, norm_eps: see `linear_attention_reference`.
        state: `A = sum_m phi(k_m) v_m^T` `[B, H, D, D]`, keys rotated, and
            `z = sum_m phi(k_m)` `[B, H, D]`, keys not rotated; `None` is zeros.

    Returns:
        `[B, N, H, D]` and (A, z), in the accumulation dtype.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    query, key, value = query.to(wide), key.to(wide), value.to(wide)
    if norms is not None:
        query, key = rms(query, norms[0], norm_eps), rms(key, norms[1], norm_eps)
    query, key = query.relu().transpose(1, 2), key.relu().transpose(1, 2)  # [B, H, N, D]
    value = value.transpose(1, 2)
    key_sum = key.sum(dim=-2)  # [B, H, D]
    turned_key = key if rope is None else turn(key, *rope)
    turned_query = query if rope is None else turn(query, *rope)
    key_value = turned_key.transpose(-1, -2) @ value  # [B, H, D, D]
    if state is not None:
        key_value, key_sum = key_value + state[0], key_sum + state[1]
    numerator = turned_query @ key_value  # [B, H, N, D]
    denominator = query @ key_sum.unsqueeze(-1)  # [B, H, N, 1]
    return (numerator / (denominator + eps)).transpose(1, 2), (key_value, key_sum)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`[B, N, H, D]` over its root mean square over heads and channels, times `weight [H * D]`."""
    scale = torch.rsqrt(x.square().mean((-1, -2), keepdim=True) + eps)
    return x * scale * weight.to(x.dtype).unflatten(0, x.shape[-2:])


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`[..., N, D]` with the pairs (2i, 2i + 1) rotated by the angles of `[N, D / 2]`."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)  # [..., N, D / 2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return turned.flatten(-2)
