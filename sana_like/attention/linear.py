"""ReLU linear attention as a token mixer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sana_like.attention.heads import qk_norms, split_heads
from sana_like_kernels import linear_attention

# Added to the normaliser; only a query whose products are all zero notices it.
NORMALISER_EPS = 1e-15


class ReLULinearAttention(nn.Module):
    """Every token reads every token through ReLU features (SANA, arXiv 2410.10629, section 3.2).

    `o_n = sum_m v_m <relu(k_m), relu(q_n)> / sum_m <relu(k_m), relu(q_n)>` per head, without a
    1/sqrt(D) scale and without positions, in time and memory linear in the number of tokens.

    Args:
        dim: width C of the tokens.
        heads: number of heads H.
        head_dim: width D of a head.
        bias: whether the query, key and value projections have biases.
        dropout: probability after the output projection.
        qk_norm: `None` or `"rms_norm_across_heads"` (SANA-1.5, Sprint).
        clip: clamp of the attended values, alike in every dtype; `None` clamps nothing.

    Raises:
        ValueError: `qk_norm` is unknown.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        qk_norm: str | None = None,
        clip: float | None = None,
    ) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.clip = clip
        self.norm_q, self.norm_k = qk_norms(qk_norm, inner)
        self.to_q = nn.Linear(dim, inner, bias=bias)
        self.to_k = nn.Linear(dim, inner, bias=bias)
        self.to_v = nn.Linear(dim, inner, bias=bias)
        self.to_out = nn.ModuleList([nn.Linear(inner, dim), nn.Dropout(dropout)])

    def forward(
        self,
        x: Tensor,
        *,
        grid: tuple[int, int, int],  # noqa: ARG002 - part of every mixer's signature
        rope: Any = None,
        cond: Any = None,
        state: None = None,
        bypass: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Mix the tokens of each row.

        Args:
            x: `[B, N, C]`.
            grid: (frames, height, width) of the tokens; this mixer does not read it.
            rope, cond, state: not read by this mixer; a value is refused.
            bypass: bool `[B]`. Where true a token reads only itself, its value going straight to
                the output projection: the perturbed branch of perturbed-attention guidance
                (arXiv 2403.17377, section 4).

        Returns:
            `[B, N, C]`, and the state, which is always `None`.

        Raises:
            ValueError: a rope, condition or state was given.
        """
        if not (rope is None and cond is None and state is None):
            raise ValueError("ReLULinearAttention reads no rope, cond or state; pass None for each")
        query, key, value = self.to_q(x), self.to_k(x), self.to_v(x)  # [B, N, H*D]
        if self.norm_q is not None and self.norm_k is not None:
            # A norm kept in fp32 must not change the dtype of the stream.
            query, key = self.norm_q(query).to(value.dtype), self.norm_k(key).to(value.dtype)
        out = linear_attention(
            split_heads(query, self.heads),
            split_heads(key, self.heads),
            split_heads(value, self.heads),
            eps=NORMALISER_EPS,
            clip=self.clip,
        ).flatten(2)  # [B, N, H*D]
        if bypass is not None:
            out = torch.where(bypass[:, None, None], value, out)
        for layer in self.to_out:
            out = layer(out)
        return out, None
