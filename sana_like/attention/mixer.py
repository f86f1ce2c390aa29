"""What all self-attentions share as token mixers: projections, norms, chunks of a stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sana_like.attention.heads import qk_norms, split_heads
from sana_like.layers.linear import Linear, is_plain
from sana_like.layers.rope import Rope
from sana_like.state import Tensors, chunk_spans

Norms = tuple[Tensor, Tensor]
Heads = tuple[Tensor, Tensor, Tensor]


class SelfAttention(nn.Module):
    """Query, key, value, something that mixes them, and an output projection.

    Args:
        dim: width C of the tokens.
        heads: number of heads H.
        head_dim: width D of a head.
        bias: whether the query, key and value projections have biases.
        dropout: probability after the output projection.
        qk_norm: `None` or `"rms_norm_across_heads"` (SANA-1.5, Sprint, video).

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
    ) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.head_dim = head_dim
        self.norm_q, self.norm_k = qk_norms(qk_norm, inner)
        self.to_q = Linear(dim, inner, bias=bias)
        self.to_k = Linear(dim, inner, bias=bias)
        self.to_v = Linear(dim, inner, bias=bias)
        self.to_out = nn.ModuleList([Linear(inner, dim), nn.Dropout(dropout)])

    @abstractmethod
    def new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The state before the first token, for a model of this `dtype`."""

    @abstractmethod
    def _whole(self, heads: Heads, rope: Rope | None, norms: Norms | None) -> Tensor:
        """Every token reads every token; `[B, N, H, D]` each, the result too."""

    @abstractmethod
    def _chunk(
        self, heads: Heads, rope: Rope | None, norms: Norms | None, state: Tensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Tokens of one chunk read each other and what `state` holds, which then takes them in."""

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
            cond: not read by these mixers; a value is refused.
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
            raise ValueError(f"{type(self).__name__} reads no cond; pass None")
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
        heads = (
            split_heads(query, self.heads),
            split_heads(key, self.heads),
            split_heads(value, self.heads),
        )  # [B, N, H, D]
        after = None
        if state is None:
            out = self._whole(heads, rope, norms)
        else:
            out, after = self._stream(heads, grid, rope, norms, state, chunks or grid[:1])
        out = out.flatten(2)  # [B, N, H*D]
        if bypass is not None:
            out = torch.where(bypass[:, None, None], value, out)
        for layer in self.to_out:
            out = layer(out)
        return out, after

    def _stream(
        self,
        heads: Heads,
        grid: tuple[int, int, int],
        rope: Rope | None,
        norms: Norms | None,
        state: Tensors,
        chunks: Sequence[int],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Chunk after chunk of `[B, N, H, D]`."""
        outs, after = [], dict(state)
        query, key, value = heads
        for span in chunk_spans(chunks, grid[1] * grid[2]):
            tables = None if rope is None else (rope[0][span], rope[1][span])
            parts = (query[:, span], key[:, span], value[:, span])
            out, after = self._chunk(parts, tables, norms, after)
            outs.append(out)
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1), after
