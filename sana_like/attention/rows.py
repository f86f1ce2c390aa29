"""Softmax attention row by row, for inference on a CPU.

Each row of a batch reads the tokens it has and no others: an empty prompt beside a long one costs
what its single token costs, and no mask is ever applied.

Legend: `N` picture tokens, `L` text tokens, `H` heads, `D` head width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from sana_like_kernels import linear
from sana_like_kernels.inference import pieces

# Beyond this many keys the fused routine is quicker than two plain products.
PLAIN_KEYS = 128


def real_rows(tokens: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Of each row of `[B, H, L, D]` the tokens that `mask [B, L]` keeps: `[H, L', D]` each."""
    if mask is None:
        return list(tokens)
    counts = mask.sum(1).tolist()
    # Padding at the end, the usual case, is cut off without a copy.
    front = [bool(row[:count].all()) for row, count in zip(mask, counts, strict=True)]
    return [
        row[:, :count] if at_front else row[:, kept]
        for row, kept, count, at_front in zip(tokens, mask, counts, front, strict=True)
    ]


def attend(query: Tensor, key: Tensor, value: Tensor, out: Tensor) -> None:
    """Write `softmax(q k^T / sqrt(D)) v` of one row into `out`; scores and sums in fp32.

    Args:
        query: `[N, H, D]`.
        key, value: `[H, L, D]`.
        out: `[N, H, D]`.
    """
    if key.shape[1] > PLAIN_KEYS:
        read = F.scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        )
        out.copy_(read[0].transpose(0, 1))
        return
    value = value.float()
    for part, scores in _weights(query, key):
        out[part].copy_(torch.bmm(scores, value).transpose(0, 1))


def attend_and_project(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """`attend` and the output projection, which is applied to the few values instead.

    Both are linear in the values, so `softmax(...) v W^T` is `softmax(...) (v W^T)`: with fewer
    text tokens than a head has channels that is less work.

    Args:
        query: `[N, H, D]`.
        key, value: `[H, L, D]`.
        weight, bias: of the projection, `[C, H * D]` and `[C]`.

    Returns:
        `[N, C]`.
    """
    tokens, heads, width = query.shape
    length = key.shape[1]
    shares = torch.empty(tokens, heads, length, dtype=query.dtype)
    for part, scores in _weights(query, key):
        shares[part].copy_(scores.transpose(0, 1))
    by_head = weight.view(-1, heads, width).permute(1, 2, 0)  # [H, D, C]
    projected = torch.bmm(value, by_head)  # [H, L, C]
    return linear(shares.flatten(1), projected.flatten(0, 1).t().contiguous(), bias)


def _weights(query: Tensor, key: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Pieces of the tokens and their fp32 `softmax(q k^T / sqrt(D))` `[H, n, L]`."""
    tokens, heads, width = query.shape
    turned = (key.float() * width**-0.5).transpose(1, 2)  # [H, D, L]
    steps = pieces(tokens, heads * max(width, key.shape[1]))
    for start in steps:
        part = slice(start, start + steps.step)
        scores = torch.bmm(query[part].float().transpose(0, 1), turned)
        yield part, torch.softmax(scores, -1, out=scores)
