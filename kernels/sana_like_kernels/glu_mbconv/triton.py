"""Kernels between the two 1x1 convolutions of GLUMBConv, channels last.

Legend: `B` batch, `Y`, `X` grid, `C` = h channels of value or gate. A program walks down `ROWS`
rows of one strip of `BLOCK_X` columns and `BLOCK_C` channels, so that a row is read for three rows
of results at once; rows and columns outside the grid are zeros. Rows are counted from the first of
the program, `top` <= y < `bottom` being those of the grid: offsets inside a program fit 32 bits,
those of a large picture do not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sana_like_kernels.primitives.triton import silu, silu_slope


@triton.jit
def load_pixels(x, y, columns, c, top, bottom, X, C, stride_y, stride_x):
    limit = tl.where((y >= top) & (y < bottom), X, 0)
    inside = (columns[:, None] >= 0) & (columns[:, None] < limit) & (c[None, :] < C)
    offsets = y * stride_y + columns[:, None] * stride_x + c[None, :]
    return tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32), inside


@triton.jit
def load_hidden(x, bias, y, columns, c, top, bottom, X, C, stride_y, stride_x, BIAS: tl.constexpr):
    values, inside = load_pixels(x, y, columns, c, top, bottom, X, C, stride_y, stride_x)
    if BIAS:
        values += tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    return values, inside


@triton.jit
def load_active(x, bias, y, columns, c, top, bottom, X, C, stride_y, stride_x, BIAS: tl.constexpr):
    """SiLU of pixels; the padding is zero after it, whatever the bias."""
    values, inside = load_hidden(
        x, bias, y, columns, c, top, bottom, X, C, stride_y, stride_x, BIAS
    )
    return tl.where(inside, silu(values), 0.0)


@triton.jit
def load_weight(weight, c, C, FLIP: tl.constexpr):
    """The nine taps of each channel, in reverse if FLIP."""
    first = weight + c * 9
    step = 1
    if FLIP:
        first += 8
        step = -1
    return (
        tl.load(first, mask=c < C, other=0.0).to(tl.float32)[None, :],
        tl.load(first + step, mask=c < C, other=0.0).to(tl.float32)[None, :],
        tl.load(first + 2 * step, mask=c < C, other=0.0).to(tl.float32)[None, :],
        tl.load(first + 3 * step, mask=c < C, other=0.0).to(tl.float32)[None, :],
        tl.load(first + 4 * step, mask=c < C, other=0.0).to(tl.float32)[None, :],
        tl.load(first + 5 * step, mask=c < C, other=0.0).to(tl.float32)[None, :],
        tl.load(first + 6 * step, mask=c < C, other=0.0).to(tl.float32)[None, :],
        tl.load(first + 7 * step, mask=c < C, other=0.0).to(tl.float32)[None, :],
        tl.load(first + 8 * step, mask=c < C, other=0.0).to(tl.float32)[None, :],
    )


@triton.jit
def spread(left, middle, right, w):
    """What one row adds to the results of the row above it, of itself and of the row below it."""
    above = left * w[6] + middle * w[7] + right * w[8]
    same = left * w[3] + middle * w[4] + right * w[5]
    below = left * w[0] + middle * w[1] + right * w[2]
    return above, same, below


@triton.jit
def gate_kernel(
    hidden, weight, bias, expand_bias, grad, out, Y, X, C,
    stride_b, stride_y, stride_x, stride_gb, stride_gy, stride_gx,
    ROWS: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr,
    BIAS: tl.constexpr, EXPAND: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """out[B, Y, X, C] = value * SiLU(gate); BACKWARD: gradients of both, out[B, Y, X, 2C]."""
    strips = tl.cdiv(X, BLOCK_X)
    y_first = (tl.program_id(0) // strips) * ROWS
    x = (tl.program_id(0) % strips) * BLOCK_X + tl.arange(0, BLOCK_X)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    batch = tl.program_id(2).to(tl.int64)
    top, bottom = -y_first, Y - y_first
    hidden += batch * stride_b + y_first.to(tl.int64) * stride_y
    grad += batch * stride_gb + y_first.to(tl.int64) * stride_gy
    w_value = load_weight(weight, c, C, False)
    w_gate = load_weight(weight + 9 * C, c, C, False)
    value_1 = tl.zeros((BLOCK_X, BLOCK_C), tl.float32)
    value_2 = tl.zeros((BLOCK_X, BLOCK_C), tl.float32)
    gate_1 = tl.zeros((BLOCK_X, BLOCK_C), tl.float32)
    gate_2 = tl.zeros((BLOCK_X, BLOCK_C), tl.float32)
    if BIAS:
        b_value = tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
        b_gate = tl.load(bias + C + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
    for i in range(0, tl.minimum(ROWS, bottom) + 2):
        y = i - 1
        left = load_active(
            hidden, expand_bias, y, x - 1, c, top, bottom, X, C, stride_y, stride_x, EXPAND
        )
        middle = load_active(
            hidden, expand_bias, y, x, c, top, bottom, X, C, stride_y, stride_x, EXPAND
        )
        right = load_active(
            hidden, expand_bias, y, x + 1, c, top, bottom, X, C, stride_y, stride_x, EXPAND
        )
        above, same, below = spread(left, middle, right, w_value)
        value, value_1, value_2 = value_1 + above, value_2 + same, below
        other = hidden + C
        b_other = expand_bias + C
        left = load_active(
            other, b_other, y, x - 1, c, top, bottom, X, C, stride_y, stride_x, EXPAND
        )
        middle = load_active(other, b_other, y, x, c, top, bottom, X, C, stride_y, stride_x, EXPAND)
        right = load_active(
            other, b_other, y, x + 1, c, top, bottom, X, C, stride_y, stride_x, EXPAND
        )
        above, same, below = spread(left, middle, right, w_gate)
        gate, gate_1, gate_2 = gate_1 + above, gate_2 + same, below
        if BIAS:
            value += b_value
            gate += b_gate
        row = y - 1
        limit = tl.where((row >= 0) & (row < bottom), X, 0)
        inside = (x[:, None] < limit) & (c[None, :] < C)
        pixel = (batch * Y + y_first + row) * X + x[:, None]
        kind = out.dtype.element_ty
        if BACKWARD:
            place = grad + row * stride_gy + x[:, None] * stride_gx + c[None, :]
            g = tl.load(place, mask=inside, other=0.0).to(tl.float32)
            target = out + pixel * (2 * C) + c[None, :]
            tl.store(target, (g * silu(gate)).to(kind), mask=inside)
            tl.store(target + C, (g * value * silu_slope(gate)).to(kind), mask=inside)
        else:
            target = out + pixel * C + c[None, :]
            tl.store(target, (value * silu(gate)).to(kind), mask=inside)


@triton.jit
def store_sum(sums, k, values, c, C):
    tl.store(sums + k * C + c, tl.sum(values, 0), mask=c < C)


@triton.jit
def backward_kernel(
    hidden, weight, expand_bias, planes, grad_hidden, sums, Y, X, C,
    stride_b, stride_y, stride_x,
    ROWS: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_C: tl.constexpr, EXPAND: tl.constexpr,
):  # fmt: skip
    """From gradients `planes[B, Y, X, C]` of the convolution's result, here C = 2h.

    grad_hidden[B, Y, X, C], and sums[B, tile, 11, C]: of the nine weights, of the bias and of the
    expansion's bias, over the pixels of one tile.
    """
    strips = tl.cdiv(X, BLOCK_X)
    y_first = (tl.program_id(0) // strips) * ROWS
    x = (tl.program_id(0) % strips) * BLOCK_X + tl.arange(0, BLOCK_X)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    batch = tl.program_id(2).to(tl.int64)
    top, bottom = -y_first, Y - y_first
    hidden += batch * stride_b + y_first.to(tl.int64) * stride_y
    planes += (batch * Y + y_first) * X * C
    grad_hidden += (batch * Y + y_first) * X * C
    w = load_weight(weight, c, C, True)
    zero = tl.zeros((BLOCK_X, BLOCK_C), tl.float32)
    next_1, next_2, u_above, u_same = zero, zero, zero, zero
    s0, s1, s2, s3, s4, s5, s6, s7, s8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    s_bias, s_expand = zero, zero
    for i in range(0, tl.minimum(ROWS, bottom) + 2):
        y = i - 1
        left, _ = load_pixels(planes, y, x - 1, c, top, bottom, X, C, X * C, C)
        middle, _ = load_pixels(planes, y, x, c, top, bottom, X, C, X * C, C)
        right, _ = load_pixels(planes, y, x + 1, c, top, bottom, X, C, X * C, C)
        above, same, below = spread(left, middle, right, w)
        slope, next_1, next_2 = next_1 + above, next_2 + same, below

        # Weight gradients pair a pixel of this tile's input with its neighbours' gradients.
        end = tl.minimum(bottom, ROWS)
        u_below = load_active(
            hidden, expand_bias, y + 1, x, c, top, end, X, C, stride_y, stride_x, EXPAND
        )
        s0, s1, s2 = s0 + u_above * right, s1 + u_above * middle, s2 + u_above * left
        s3, s4, s5 = s3 + u_same * right, s4 + u_same * middle, s5 + u_same * left
        s6, s7, s8 = s6 + u_below * right, s7 + u_below * middle, s8 + u_below * left
        u_above, u_same = u_same, u_below
        s_bias += tl.where((y >= 0) & (y < ROWS), middle, 0.0)

        values, _ = load_hidden(
            hidden, expand_bias, y - 1, x, c, top, bottom, X, C, stride_y, stride_x, EXPAND
        )
        inside = (x[:, None] < tl.where((y > 0) & (y <= bottom), X, 0)) & (c[None, :] < C)
        result = slope * silu_slope(values)
        s_expand += tl.where(inside, result, 0.0)
        target = grad_hidden + ((y - 1) * X + x[:, None]) * C + c[None, :]
        tl.store(target, result.to(grad_hidden.dtype.element_ty), mask=inside)
    sums += (batch * tl.num_programs(0) + tl.program_id(0)) * 11 * C
    store_sum(sums, 0, s0, c, C)
    store_sum(sums, 1, s1, c, C)
    store_sum(sums, 2, s2, c, C)
    store_sum(sums, 3, s3, c, C)
    store_sum(sums, 4, s4, c, C)
    store_sum(sums, 5, s5, c, C)
    store_sum(sums, 6, s6, c, C)
    store_sum(sums, 7, s7, c, C)
    store_sum(sums, 8, s8, c, C)
    store_sum(sums, 9, s_bias, c, C)
    store_sum(sums, 10, s_expand, c, C)
