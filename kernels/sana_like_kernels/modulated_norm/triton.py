"""Kernels of norm and modulation, with the gated residual before them.

Legend: `B` batch, `N` = F * S tokens, `F` frames, `C` channels. A program works on tokens of one
frame of one sample, whose modulation it reads once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_vector(x, frame, c, C: tl.constexpr, stride_b, stride_f, F):
    offset = (frame // F) * stride_b + (frame % F) * stride_f
    return tl.load(x + offset + c, mask=c < C, other=0.0).to(tl.float32)[None, :]


@triton.jit
def load_tokens(x, frame, s, c, inside, stride_b, stride_n, F, S):
    n = (frame % F) * S + s
    offsets = (frame // F) * stride_b + n[:, None].to(tl.int64) * stride_n + c[None, :]
    return tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def normalise(x, inside, eps, C: tl.constexpr, RMS: tl.constexpr):
    """x_hat and 1 / sigma; two passes over registers, so that large means cost no accuracy."""
    if not RMS:
        x = tl.where(inside, x - (tl.sum(x, 1) / C)[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / C + eps)[:, None]
    return x * rstd, rstd


@triton.jit
def norm_kernel(
    x, branch, gate, shift, scale, residual, out, F, S, eps,
    stride_xb, stride_xn, stride_yb, stride_yn,
    stride_gb, stride_gf, stride_tb, stride_tf, stride_sb, stride_sf,
    C: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr,
    RMS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """out = norm(r) * (1 + scale) + shift with r = x + gate * branch if GATED, else x."""
    s = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    frame = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    inside = (s[:, None] < S) & (c[None, :] < C)
    values = load_tokens(x, frame, s, c, inside, stride_xb, stride_xn, F, S)
    target = (frame * S + s[:, None]) * C + c[None, :]
    if GATED:
        added = load_tokens(branch, frame, s, c, inside, stride_yb, stride_yn, F, S)
        values += load_vector(gate, frame, c, C, stride_gb, stride_gf, F) * added
        # What is normalised is what the stream carries on: the rounded sum.
        rounded = values.to(residual.dtype.element_ty)
        tl.store(residual + target, rounded, mask=inside)
        values = rounded.to(tl.float32)
    hat, _ = normalise(values, inside, eps, C, RMS)
    result = hat * (1 + load_vector(scale, frame, c, C, stride_sb, stride_sf, F))
    result += load_vector(shift, frame, c, C, stride_tb, stride_tf, F)
    tl.store(out + target, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward_kernel(
    grad, grad_residual, residual, branch, gate, scale, grad_x, grad_branch, sums,
    F, S, eps, tokens,
    stride_yb, stride_yn, stride_gb, stride_gf, stride_sb, stride_sf,
    C: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr,
    RMS: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """grad_x and grad_branch; sums[B * F, part, 3, C] of shift, scale and gate over one part."""
    frame = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    sum_shift = tl.zeros((BLOCK_C,), tl.float32)
    sum_scale = tl.zeros((BLOCK_C,), tl.float32)
    sum_gate = tl.zeros((BLOCK_C,), tl.float32)
    start = tl.program_id(1) * tokens
    kind = grad_x.dtype.element_ty
    for i in range(0, tokens, ROWS):
        s = start + i + tl.arange(0, ROWS)
        inside = (s[:, None] < S) & (c[None, :] < C)
        place = (frame * S + s[:, None]) * C + c[None, :]
        values = tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        hat, rstd = normalise(values, inside, eps, C, RMS)
        g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        sum_shift += tl.sum(g, 0)
        sum_scale += tl.sum(g * hat, 0)
        # Read again for each block: it would take the registers that the sums need.
        gain = 1 + load_vector(scale, frame, c, C, stride_sb, stride_sf, F)
        g = tl.where(inside, g * gain, 0.0)
        result = g - hat * (tl.sum(g * hat, 1) / C)[:, None]
        if not RMS:
            result -= (tl.sum(g, 1) / C)[:, None]
        result *= rstd
        if GATED:
            result += tl.load(grad_residual + place, mask=inside, other=0.0).to(tl.float32)
            added = load_tokens(branch, frame, s, c, inside, stride_yb, stride_yn, F, S)
            sum_gate += tl.sum(tl.where(inside, result * added, 0.0), 0)
            down = result * load_vector(gate, frame, c, C, stride_gb, stride_gf, F)
            tl.store(grad_branch + place, down.to(kind), mask=inside)
        tl.store(grad_x + place, result.to(kind), mask=inside)
    target = sums + (frame * tl.num_programs(1) + tl.program_id(1)) * 3 * C + c
    tl.store(target, sum_shift, mask=c < C)
    tl.store(target + C, sum_scale, mask=c < C)
    tl.store(target + 2 * C, sum_gate, mask=c < C)
