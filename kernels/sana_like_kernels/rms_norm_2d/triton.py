"""Kernels of the autoencoders' norm, activation and residual. Legend: `R` pixels, `C` channels."""

from __future__ import annotations

import triton
import triton.language as tl

from sana_like_kernels.primitives.triton import relu, silu, silu_slope


@triton.jit
def load_vector(x, c, C: tl.constexpr):
    return tl.load(x + c, mask=c < C, other=0.0).to(tl.float32)[None, :]


@triton.jit
def norm_kernel(
    x, weight, bias, residual, out, R, eps,
    C: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """out[R, C] = activation(x / rms(x) * weight + bias) + residual."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK_C)
    inside = (r[:, None] < R) & (c[None, :] < C)
    place = r[:, None] * C + c[None, :]
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(values * values, 1) / C + eps)
    values = values * rstd[:, None] * load_vector(weight, c, C)
    if BIAS:
        values += load_vector(bias, c, C)
    if ACTIVATION == "relu":
        values = relu(values)
    if ACTIVATION == "silu":
        values = silu(values)
    if ADD:
        values += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def norm_backward_kernel(
    grad, x, weight, bias, grad_x, sums, R, eps, pixels,
    C: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """grad_x[R, C]; sums[part, 2, C] of weight and bias over `pixels` pixels of one part."""
    c = tl.arange(0, BLOCK_C)
    w = load_vector(weight, c, C)
    sum_weight = tl.zeros((BLOCK_C,), tl.float32)
    sum_bias = tl.zeros((BLOCK_C,), tl.float32)
    start = tl.program_id(0).to(tl.int64) * pixels
    for i in range(0, pixels, ROWS):
        r = start + i + tl.arange(0, ROWS)
        inside = (r[:, None] < R) & (c[None, :] < C)
        place = r[:, None] * C + c[None, :]
        hat = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(hat * hat, 1) / C + eps)[:, None]
        hat *= rstd
        g = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        if ACTIVATION != "none":
            before = hat * w
            if BIAS:
                before += load_vector(bias, c, C)
            if ACTIVATION == "relu":
                g = tl.where(before <= 0, 0.0, g)
            else:
                g *= silu_slope(before)
        sum_weight += tl.sum(g * hat, 0)
        sum_bias += tl.sum(g, 0)
        g *= w
        result = rstd * (g - hat * (tl.sum(g * hat, 1) / C)[:, None])
        tl.store(grad_x + place, result.to(grad_x.dtype.element_ty), mask=inside)
    target = sums + tl.program_id(0).to(tl.int64) * 2 * C + c
    tl.store(target, sum_weight, mask=c < C)
    tl.store(target + C, sum_bias, mask=c < C)
