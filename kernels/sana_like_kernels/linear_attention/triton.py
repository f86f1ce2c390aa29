"""Kernels of ReLU linear attention. Legend: `N` tokens, `H` heads, `D` head width, `R` = B * H.

A program works on one row of `R` and on a block of tokens. Widths are padded to `BLOCK_D` by masks:
padded channels load as zeros, which ReLU, rotation and products leave at zero.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sana_like_kernels.primitives.triton import relu, rotate


@triton.jit
def row_rms_kernel(
    x, rstd, N, stride_b, stride_n, stride_h, eps,
    C: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """1 / rms over all C = H * D channels of `ROWS` tokens."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    batch = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    offsets = n[:, None].to(tl.int64) * stride_n + (c // D * stride_h + c % D)[None, :]
    inside = (n[:, None] < N) & (c[None, :] < C)
    values = tl.load(x + batch * stride_b + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(rstd + batch * N + n, tl.rsqrt(tl.sum(values * values, 1) / C + eps), mask=n < N)


@triton.jit
def load_tile(x, n, d, N, stride_n, D: tl.constexpr):
    inside = (n[:, None] < N) & (d[None, :] < D)
    return tl.load(x + n[:, None].to(tl.int64) * stride_n + d[None, :], mask=inside, other=0.0).to(
        tl.float32
    )


@triton.jit
def store_tile(x, values, n, d, N, stride_n, D: tl.constexpr):
    inside = (n[:, None] < N) & (d[None, :] < D)
    offsets = n[:, None].to(tl.int64) * stride_n + d[None, :]
    tl.store(x + offsets, values.to(x.dtype.element_ty), mask=inside)


@triton.jit
def load_features(x, rstd, weight, n, d, N, stride_n, D: tl.constexpr, NORM: tl.constexpr):
    """ReLU of a tile of queries or keys, normalised before it if NORM."""
    values = load_tile(x, n, d, N, stride_n, D)
    if NORM:
        scale = tl.load(rstd + n, mask=n < N, other=0.0)
        gain = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32)
        values = values * scale[:, None] * gain[None, :]
    return relu(values)


@triton.jit
def load_angles(table, n, N, D: tl.constexpr, BLOCK_D: tl.constexpr):
    half = tl.arange(0, BLOCK_D // 2)
    inside = (n[:, None] < N) & (half[None, :] < D // 2)
    return tl.load(table + n[:, None] * (D // 2) + half[None, :], mask=inside, other=0.0)


@triton.jit
def turn(x, cos, sin, n, N, sign, D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
         ROPE: tl.constexpr):  # fmt: skip
    """Rotate a tile by its positions, backwards if sign is -1."""
    if ROPE:
        c = load_angles(cos, n, N, D, BLOCK_D)
        s = load_angles(sin, n, N, D, BLOCK_D) * sign
        x = rotate(x, c, s, BLOCK_N, BLOCK_D)
    return x


@triton.jit
def load_square(matrix, row, d, D: tl.constexpr):
    inside = (d[:, None] < D) & (d[None, :] < D)
    return tl.load(matrix + row * D * D + d[:, None] * D + d[None, :], mask=inside, other=0.0)


@triton.jit
def by_halves(
    x, matrix, row, n, d, N, stride_n,
    D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of x times the transposed matrix, half of the sum at a time: less is held at once."""
    total = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for first in range(0, BLOCK_D, BLOCK_D // 2):
        k = first + tl.arange(0, BLOCK_D // 2)
        inside = (k[:, None] < D) & (d[None, :] < D)
        part = tl.load(matrix + row * D * D + d[None, :] * D + k[:, None], mask=inside, other=0.0)
        total = tl.dot(load_tile(x, n, k, N, stride_n, D), part, total, input_precision=PRECISION)
    return total


@triton.jit
def store_sums(matrix, vector, matrix_sum, vector_sum, part, d, v, D: tl.constexpr):
    inside = (d[:, None] < D) & (v[None, :] < D)
    tl.store(matrix + part * D * D + d[:, None] * D + v[None, :], matrix_sum, mask=inside)
    # Programs for other value channels have the same vector; the first writes it.
    limit = tl.where(tl.program_id(2) == 0, D, 0)
    tl.store(vector + part * D + d, vector_sum, mask=d < limit)


@triton.jit
def key_value_kernel(
    key, value, rstd, weight, cos, sin, kv, key_sum, N, H, tokens,
    stride_kb, stride_kn, stride_kh, stride_vb, stride_vn, stride_vh,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over `tokens` tokens of one split: kv[split, R, D, D] and key_sum[split, R, D]."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    batch, head = row // H, row % H
    key += batch * stride_kb + head * stride_kh
    value += batch * stride_vb + head * stride_vh
    d = tl.arange(0, BLOCK_D)
    v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    kv_sum = tl.zeros((BLOCK_D, BLOCK_V), tl.float32)
    sums = tl.zeros((BLOCK_D,), tl.float32)
    start = split * tokens
    for first in range(start, tl.minimum(start + tokens, N), BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        k = load_features(key, rstd + batch * N, weight + head * D, n, d, N, stride_kn, D, NORM)
        values = load_tile(value, n, v, N, stride_vn, D)
        sums += tl.sum(k, 0)
        k = turn(k, cos, sin, n, N, 1.0, D, BLOCK_N, BLOCK_D, ROPE)
        kv_sum = tl.dot(tl.trans(k), values, kv_sum, input_precision=PRECISION)
    part = split * tl.num_programs(0).to(tl.int64) + row
    store_sums(kv, key_sum, kv_sum, sums, part, d, v, D)


@triton.jit
def output_kernel(
    query, rstd, weight, cos, sin, kv, key_sum, out, N, H, eps,
    stride_qb, stride_qn, stride_qh,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr,
    KEEP: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, PRECISION: tl.constexpr, DIVIDE: tl.constexpr,
):  # fmt: skip
    """out[B, N, H, D] = turned query @ kv, over (query @ key_sum + eps) if DIVIDE."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // H, row % H
    d = tl.arange(0, BLOCK_D)
    query += batch * stride_qb + head * stride_qh
    out += (batch * N * H + head) * D
    if KEEP:
        square = load_square(kv, row, d, D)
    sums = tl.load(key_sum + row * D + d, mask=d < D, other=0.0)
    start = tl.program_id(1) * BLOCKS * BLOCK_N
    for first in range(start, tl.minimum(start + BLOCKS * BLOCK_N, N), BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        q = load_features(query, rstd + batch * N, weight + head * D, n, d, N, stride_qn, D, NORM)
        if DIVIDE:
            normaliser = tl.sum(q * sums[None, :], 1) + eps
        q = turn(q, cos, sin, n, N, 1.0, D, BLOCK_N, BLOCK_D, ROPE)
        if not KEEP:
            square = load_square(kv, row, d, D)
        values = tl.dot(q, square, input_precision=PRECISION)
        if DIVIDE:
            values = values / normaliser[:, None]
        store_tile(out, values, n, d, N, H * D, D)


@triton.jit
def backward_query_kernel(
    query, rstd, weight, cos, sin, kv, key_sum, grad, grad_query, inverse, slope, N, H, eps,
    stride_qb, stride_qn, stride_qh, stride_gb, stride_gn, stride_gh,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr,
    KEEP: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of the (normalised) query; per token 1/normaliser and the normaliser's gradient."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // H, row % H
    d = tl.arange(0, BLOCK_D)
    query += batch * stride_qb + head * stride_qh
    grad += batch * stride_gb + head * stride_gh
    grad_query += (batch * N * H + head) * D
    # <g, q A> = <g A^T, q>: one product serves the numerator's gradient and the normaliser's.
    if KEEP:
        square = tl.trans(load_square(kv, row, d, D))
    sums = tl.load(key_sum + row * D + d, mask=d < D, other=0.0)
    start = tl.program_id(1) * BLOCKS * BLOCK_N
    for first in range(start, tl.minimum(start + BLOCKS * BLOCK_N, N), BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        q = load_features(query, rstd + batch * N, weight + head * D, n, d, N, stride_qn, D, NORM)
        over = 1 / (tl.sum(q * sums[None, :], 1) + eps)
        if KEEP:
            g = load_tile(grad, n, d, N, stride_gn, D)
            back = tl.dot(g, square, input_precision=PRECISION)
        else:
            back = by_halves(grad, kv, row, n, d, N, stride_gn, D, BLOCK_N, BLOCK_D, PRECISION)
        turned = turn(q, cos, sin, n, N, 1.0, D, BLOCK_N, BLOCK_D, ROPE)
        down = -tl.sum(back * turned, 1) * over * over
        back = turn(back, cos, sin, n, N, -1.0, D, BLOCK_N, BLOCK_D, ROPE)
        result = back * over[:, None] + down[:, None] * sums[None, :]
        result = tl.where(q <= 0, 0.0, result)
        store_tile(grad_query, result, n, d, N, H * D, D)
        tl.store(inverse + row * N + n, over, mask=n < N)
        tl.store(slope + row * N + n, down, mask=n < N)


@triton.jit
def backward_sums_kernel(
    query, rstd, weight, cos, sin, grad, inverse, slope, grad_kv, grad_key_sum, N, H, tokens,
    stride_qb, stride_qn, stride_qh, stride_gb, stride_gn, stride_gh,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of kv and key_sum over the tokens of one split."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    batch, head = row // H, row % H
    query += batch * stride_qb + head * stride_qh
    grad += batch * stride_gb + head * stride_gh
    d = tl.arange(0, BLOCK_D)
    v = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    kv_sum = tl.zeros((BLOCK_D, BLOCK_V), tl.float32)
    sums = tl.zeros((BLOCK_D,), tl.float32)
    start = split * tokens
    for first in range(start, tl.minimum(start + tokens, N), BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        q = load_features(query, rstd + batch * N, weight + head * D, n, d, N, stride_qn, D, NORM)
        down = tl.load(slope + row * N + n, mask=n < N, other=0.0)
        sums += tl.sum(q * down[:, None], 0)
        over = tl.load(inverse + row * N + n, mask=n < N, other=0.0)
        g = load_tile(grad, n, v, N, stride_gn, D) * over[:, None]
        q = turn(q, cos, sin, n, N, 1.0, D, BLOCK_N, BLOCK_D, ROPE)
        kv_sum = tl.dot(tl.trans(q), g, kv_sum, input_precision=PRECISION)
    part = split * tl.num_programs(0).to(tl.int64) + row
    store_sums(grad_kv, grad_key_sum, kv_sum, sums, part, d, v, D)


@triton.jit
def backward_key_kernel(
    key, value, rstd, weight, cos, sin, grad_kv, grad_key_sum, grad_key, N, H,
    stride_kb, stride_kn, stride_kh, stride_vb, stride_vn, stride_vh,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCKS: tl.constexpr,
    KEEP: tl.constexpr,
    NORM: tl.constexpr, ROPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of the (normalised) key; that of the value is an `output_kernel` on grad_kv."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // H, row % H
    d = tl.arange(0, BLOCK_D)
    key += batch * stride_kb + head * stride_kh
    value += batch * stride_vb + head * stride_vh
    grad_key += (batch * N * H + head) * D
    if KEEP:
        square = tl.trans(load_square(grad_kv, row, d, D))
    sums = tl.load(grad_key_sum + row * D + d, mask=d < D, other=0.0)
    start = tl.program_id(1) * BLOCKS * BLOCK_N
    for first in range(start, tl.minimum(start + BLOCKS * BLOCK_N, N), BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        if KEEP:
            v = load_tile(value, n, d, N, stride_vn, D)
            back = tl.dot(v, square, input_precision=PRECISION)
        else:
            back = by_halves(
                value, grad_kv, row, n, d, N, stride_vn, D, BLOCK_N, BLOCK_D, PRECISION
            )
        back = turn(back, cos, sin, n, N, -1.0, D, BLOCK_N, BLOCK_D, ROPE) + sums[None, :]
        k = load_features(key, rstd + batch * N, weight + head * D, n, d, N, stride_kn, D, NORM)
        store_tile(grad_key, tl.where(k <= 0, 0.0, back), n, d, N, H * D, D)
