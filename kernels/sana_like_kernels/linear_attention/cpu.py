"""Attention for inference on a CPU: some tokens at a time, in fp32, without transposed copies.

Legend: `B` batch, `N` tokens, `n` tokens of a piece, `H` heads, `D` head width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sana_like_kernels.inference import pieces
from sana_like_kernels.linear_attention.reference import Norms, Rope, State, turn


def linear_attention_inference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: State | None = None,
    *,
    eps: float,
    rope: Rope | None = None,
    norms: Norms | None = None,
    norm_eps: float = 1e-5,
    out: Tensor | None = None,
) -> tuple[Tensor, State]:
    """The op, all sums in fp32.

    Args:
        query, key, value, eps, rope, norms, norm_eps: see `linear_attention`.
        state: see `block_causal_linear_attention`.
        out: `[B, N, H, D]`, any strides; a new tensor by default.

    Returns:
        `out`, in the dtype of `query`, and the state after these tokens.
    """
    if out is None:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
    _, _, heads, width = query.shape
    weights: list[Tensor | None] = [None, None]
    if norms is not None:
        weights = [weight.float().view(heads, width) for weight in norms]
    if state is None:
        matrices = torch.zeros(len(query), heads, width, width)
        vectors = torch.zeros(len(query), heads, width)
    else:
        matrices, vectors = (sums.clone() for sums in state)
    for row, (matrix, vector) in enumerate(zip(matrices, vectors, strict=True)):
        for part, plain, turned in _features(key[row], weights[1], norm_eps, rope):
            values = value[row, part].float().transpose(0, 1)
            matrix.baddbmm_(turned.permute(1, 2, 0), values)
            vector.add_(plain.sum(0))
        for part, plain, turned in _features(query[row], weights[0], norm_eps, rope):
            normaliser = (plain * vector).sum(-1, keepdim=True).add_(eps)  # [n, H, 1]
            # Of the features, not of the result: they are in order, and it is a product's output.
            read = torch.bmm(turned.div_(normaliser).transpose(0, 1), matrix)  # [H, n, D]
            out[row, part].copy_(read.transpose(0, 1))
    return out, (matrices, vectors)


def _features(
    x: Tensor, weight: Tensor | None, norm_eps: float, rope: Rope | None
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Pieces of `[N, H, D]`: which tokens, `phi(norm(x))` `[n, H, D]` in fp32, and that turned."""
    tokens, heads, width = x.shape
    steps = pieces(tokens, heads * width)
    for start in steps:
        part = slice(start, start + steps.step)
        plain = _phi(x[part], weight, norm_eps)
        if rope is None:
            yield part, plain, plain
        else:
            tables = (table[part].unsqueeze(1) for table in rope)  # [n, 1, D / 2]
            yield part, plain, turn(plain, *tables)


def _phi(x: Tensor, weight: Tensor | None, norm_eps: float) -> Tensor:
    """ReLU of the normed `[n, H, D]` as a new fp32 tensor."""
    if weight is None:
        return x.relu() if x.dtype == torch.float32 else x.float().relu_()
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=(-1, -2), keepdim=True)
    scale = norm.square_().div_(weight.numel()).add_(norm_eps).rsqrt_()
    wide = wide * scale if x.dtype == torch.float32 else wide.mul_(scale)
    return wide.mul_(weight).relu_()
