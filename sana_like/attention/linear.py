"""ReLU linear attention as a token mixer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sana_like.attention.heads import QK_NORM_EPS, qk_norms, split_heads
from sana_like.layers.linear import Linear, is_plain
from sana_like.layers.rope import Rope
from sana_like.state import Tensors, chunk_spans
from sana_like_kernels import block_causal_linear_attention, linear_attention

# Added to the normaliser; only a query whose products are all zero notices it.
NORMALISER_EPS = 1e-15


class ReLULinearAttention(nn.Module):
    """Every token reads every token through ReLU features (SANA, arXiv 2410.10629, section 3.2).

    `o_n = sum_m v_m <relu(k_m), relu(q_n)> / sum_m <relu(k_m), relu(q_n)>` per head, without a
    1/sqrt(D) scale, in time and memory linear in the number of tokens. Positions, where there are
    any, turn the features of the numerator only: turned ones can have negative products, which a
    normaliser must not. Over a stream the sums run on: `A = sum_m relu(k_m) v_m^T`, keys turned,
    and `z = sum_m relu(k_m)` are all that later chunks need (SANA-Video, arXiv 2509.24695, 3.3).

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
        self.to_q = Linear(dim, inner, bias=bias)
        self.to_k = Linear(dim, inner, bias=bias)
        self.to_v = Linear(dim, inner, bias=bias)
        self.to_out = nn.ModuleList([Linear(inner, dim), nn.Dropout(dropout)])

    def new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The sums before the first token; fp32, or fp64 for a model of that `dtype`."""
        wide = torch.promote_types(dtype, torch.float32)
        width = self.to_q.out_features // self.heads
        shape = (batch, self.heads, width)
        return {
            "key_value": torch.zeros(*shape, width, device=device, dtype=wide),
            "key_sum": torch.zeros(shape, device=device, dtype=wide),
        }

    def forward(
        self,
        x: Tensor,
        *,
        grid: tuple[int, int, int],
        rope: Rope | None = None,
        cond: Any = None,
        state: Tensors | None = None,
        chunks: Sequence[int] | None = None,
        bypass: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor] | None]:
        """Mix the tokens of each row.

        Args:
            x: `[B, N, C]`.
            grid: (frames, height, width) of the tokens.
            rope: cosines and sines `[N, D / 2]`, see `layers.rope.rope_3d`.
            cond: not read by this mixer; a value is refused.
            state: of the tokens before these; `None` for a whole sequence, in which every token
                reads every token.
            chunks: frames of each chunk of a stream; `None` takes all for one.
            bypass: bool `[B]`. Where true a token reads only itself, its value going straight to
                the output projection: the perturbed branch of perturbed-attention guidance
                (arXiv 2403.17377, section 4).

        Returns:
            `[B, N, C]`, and the state after these tokens where one was given.

        Raises:
            ValueError: a condition was given, or chunks without a state.
        """
        if cond is not None:
            raise ValueError("ReLULinearAttention reads no cond; pass None")
        if state is None and chunks is not None:
            raise ValueError("chunks were given without a state; begin with new_state")
        query, key, value = self.to_q(x), self.to_k(x), self.to_v(x)  # [B, N, H*D]
        norms = None
        if self.norm_q is not None and self.norm_k is not None:
            if is_plain(self.norm_q, self.norm_k):
                norms = (self.norm_q.weight, self.norm_k.weight)
            else:
                # A norm kept in fp32 must not change the dtype of the stream.
                query, key = self.norm_q(query).to(value.dtype), self.norm_k(key).to(value.dtype)
        heads = [split_heads(part, self.heads) for part in (query, key, value)]  # [B, N, H, D]
        after = None
        if state is None:
            out = linear_attention(*heads, rope=rope, norms=norms, **self._settings())
        else:
            out, after = self._stream(heads, grid, rope, norms, state, chunks or grid[:1])
        out = out.flatten(2)  # [B, N, H*D]
        if bypass is not None:
            out = torch.where(bypass[:, None, None], value, out)
        for layer in self.to_out:
            out = layer(out)
        return out, after

    def _settings(self) -> dict[str, Any]:
        return {"eps": NORMALISER_EPS, "norm_eps": QK_NORM_EPS, "clip": self.clip}

    def _stream(
        self,
        heads: Sequence[Tensor],
        grid: tuple[int, int, int],
        rope: Rope | None,
        norms: tuple[Tensor, Tensor] | None,
        state: Tensors,
        chunks: Sequence[int],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Chunk after chunk: each reads itself and the sums, then the sums take it in."""
        sums = (state["key_value"], state["key_sum"])
        outs = []
        for span in chunk_spans(chunks, grid[1] * grid[2]):
            query, key, value = (part[:, span] for part in heads)
            out, sums = block_causal_linear_attention(
                query,
                key,
                value,
                sums,
                rope=None if rope is None else (rope[0][span], rope[1][span]),
                norms=norms,
                **self._settings(),
            )
            outs.append(out)
        whole = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
        return whole, {"key_value": sums[0], "key_sum": sums[1]}
