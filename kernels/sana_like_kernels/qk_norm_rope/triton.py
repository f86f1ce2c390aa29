"""Kernels of RMSNorm over all heads, then rotation.

Legend: `C` = H * D channels of one token. A program works on `ROWS` tokens; channels come as pairs
(2i, 2i + 1), `HALF` of them, counted through all heads.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_pairs(x, n, first, inside, D: tl.constexpr, stride_n, stride_h):
    offsets = n[:, None].to(tl.int64) * stride_n + (first // D * stride_h + first % D)[None, :]
    even = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(x + offsets + 1, mask=inside, other=0.0).to(tl.float32)
    return even, odd


@triton.jit
def load_weight(weight, first, C: tl.constexpr):
    even = tl.load(weight + first, mask=first < C, other=0.0).to(tl.float32)
    odd = tl.load(weight + first + 1, mask=first < C, other=0.0).to(tl.float32)
    return even[None, :], odd[None, :]


@triton.jit
def load_turn(cos, sin, n, first, inside, D: tl.constexpr):
    angle = n[:, None] * (D // 2) + (first % D // 2)[None, :]
    return tl.load(cos + angle, mask=inside, other=1.0), tl.load(
        sin + angle, mask=inside, other=0.0
    )


@triton.jit
def rms(even, odd, eps, C: tl.constexpr):
    return tl.rsqrt(tl.sum(even * even + odd * odd, 1) / C + eps)[:, None]


@triton.jit
def norm_rope_kernel(
    x, weight, cos, sin, out, N, eps, stride_b, stride_n, stride_h,
    C: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """out[B, N, H, D] = turned(x / rms(x) * weight)."""
    batch = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = 2 * tl.arange(0, HALF)
    inside = (n[:, None] < N) & (first[None, :] < C)
    even, odd = load_pairs(x + batch * stride_b, n, first, inside, D, stride_n, stride_h)
    rstd = rms(even, odd, eps, C)
    w_even, w_odd = load_weight(weight, first, C)
    even, odd = even * rstd * w_even, odd * rstd * w_odd
    if ROPE:
        c, s = load_turn(cos, sin, n, first, inside, D)
        even, odd = even * c - odd * s, odd * c + even * s
    target = out + (batch * N + n[:, None]) * C + first[None, :]
    tl.store(target, even.to(out.dtype.element_ty), mask=inside)
    tl.store(target + 1, odd.to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_rope_backward_kernel(
    grad, x, weight, cos, sin, grad_x, grad_weight, N, eps, tokens,
    stride_gb, stride_gn, stride_gh, stride_xb, stride_xn, stride_xh,
    C: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, ROPE: tl.constexpr,
):  # fmt: skip
    """grad_x[B, N, H, D]; grad_weight[B, part, C] is the sum over `tokens` tokens of one part."""
    batch = tl.program_id(1).to(tl.int64)
    first = 2 * tl.arange(0, HALF)
    w_even, w_odd = load_weight(weight, first, C)
    sum_even = tl.zeros((HALF,), tl.float32)
    sum_odd = tl.zeros((HALF,), tl.float32)
    start = tl.program_id(0) * tokens
    for i in range(0, tokens, ROWS):
        n = start + i + tl.arange(0, ROWS)
        inside = (n[:, None] < N) & (first[None, :] < C)
        g_even, g_odd = load_pairs(
            grad + batch * stride_gb, n, first, inside, D, stride_gn, stride_gh
        )
        if ROPE:
            c, s = load_turn(cos, sin, n, first, inside, D)
            g_even, g_odd = g_even * c + g_odd * s, g_odd * c - g_even * s
        even, odd = load_pairs(x + batch * stride_xb, n, first, inside, D, stride_xn, stride_xh)
        rstd = rms(even, odd, eps, C)
        even, odd = even * rstd, odd * rstd
        sum_even += tl.sum(g_even * even, 0)
        sum_odd += tl.sum(g_odd * odd, 0)
        g_even, g_odd = g_even * w_even, g_odd * w_odd
        mean = (tl.sum(g_even * even + g_odd * odd, 1) / C)[:, None]
        target = grad_x + (batch * N + n[:, None]) * C + first[None, :]
        kind = grad_x.dtype.element_ty
        tl.store(target, (rstd * (g_even - even * mean)).to(kind), mask=inside)
        tl.store(target + 1, (rstd * (g_odd - odd * mean)).to(kind), mask=inside)
    target = grad_weight + (batch * tl.num_programs(0) + tl.program_id(0)) * C + first
    tl.store(target, sum_even, mask=first < C)
    tl.store(target + 1, sum_odd, mask=first < C)
