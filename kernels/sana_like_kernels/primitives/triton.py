"""Device functions that several kernels share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def relu(x):
    # `tl.maximum` would turn NaN into zero and hide it.
    return tl.where(x < 0, 0.0, x)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def silu_slope(x):
    gate = tl.sigmoid(x)
    return gate * (1 + x * (1 - gate))


@triton.jit
def rotate(x, cos, sin, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    # Pairs of neighbours (2i, 2i + 1) are complex numbers; cos and sin are [ROWS, WIDTH / 2].
    even, odd = tl.split(tl.reshape(x, (ROWS, WIDTH // 2, 2)))
    turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return tl.reshape(turned, (ROWS, WIDTH))
