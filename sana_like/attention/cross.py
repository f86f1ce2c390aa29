"""Softmax attention from picture tokens to text tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sana_like.attention.backends import NATIVE, attend
from sana_like.attention.heads import qk_norms, split_heads
from sana_like.attention.rows import attend as attend_row
from sana_like.attention.rows import attend_and_project, real_rows
from sana_like.layers.linear import Linear, is_plain
from sana_like.layers.norm import norm_end
from sana_like_kernels.inference import plain_inference

# Up to this many keys a CPU is quicker with two plain products than with its fused attention,
# whose backward pass is tuned for long sequences.
PLAIN_CPU_KEYS = 64
# Up to this many tokens, in widths of a head, projecting the values first is less work.
SHORT = 0.8


class CrossAttention(nn.Module):
    """Ordinary softmax attention whose keys and values come from the text.

    Keys and values depend on the text alone, so they are projected by `project_text` once per
    prompt and read at every step by `forward`. `backend` names what computes it, see
    `attention.backends`.

    Args:
        dim: width C of the picture tokens.
        heads: number of heads H.
        head_dim: width D of a head.
        text_dim: width of the text tokens.
        dropout: probability after the output projection.
        qk_norm: `None` or `"rms_norm_across_heads"`.

    Raises:
        ValueError: `qk_norm` is unknown.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        text_dim: int,
        dropout: float = 0.0,
        qk_norm: str | None = None,
    ) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.backend = NATIVE
        self.norm_q, self.norm_k = qk_norms(qk_norm, inner)
        self.to_q = Linear(dim, inner)
        self.to_k = Linear(text_dim, inner)
        self.to_v = Linear(text_dim, inner)
        self.to_out = nn.ModuleList([Linear(inner, dim), nn.Dropout(dropout)])

    def project_text(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, L, text_dim]` to keys and values, each `[B, H, L, D]`."""
        key, value = self.to_k(text), self.to_v(text)
        if self.norm_k is not None:
            key = norm_end(self.norm_k, key).to(value.dtype)
        return (
            split_heads(key, self.heads).transpose(1, 2),
            split_heads(value, self.heads).transpose(1, 2),
        )

    def forward(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Read the text.

        Args:
            x: `[B, N, C]`.
            key, value: `[B, H, L, D]` from `project_text`.
            mask: bool `[B, L]`, true where a token may be read; at least one in every row.

        Returns:
            `[B, N, C]`.
        """
        if self.backend == NATIVE and plain_inference(x, key, value):
            return self._by_row(x, real_rows(key, mask), real_rows(value, mask))
        query = self._query(x, value.dtype).transpose(1, 2)  # [B, H, N, D]
        if mask is not None:
            mask = mask[:, None, None]  # [B, 1, 1, L]
        if self.backend != NATIVE:
            out = attend(self.backend, query, key, value, mask)
        elif query.device.type == "cpu" and key.shape[-2] <= PLAIN_CPU_KEYS:
            out = _plain_attention(query, key, value, mask)
        else:
            out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self._project(out.transpose(1, 2).flatten(2))

    def _query(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`[B, N, C]` to queries `[B, N, H, D]`."""
        query = self.to_q(x)
        if self.norm_q is not None:
            query = norm_end(self.norm_q, query).to(dtype)
        return split_heads(query, self.heads)

    def _project(self, out: Tensor) -> Tensor:
        """`[B, N, H*D]` to `[B, N, C]`."""
        for layer in self.to_out:
            out = layer(out)
        return out

    def _projects_plainly(self) -> bool:
        """Whether the output projection is its weights and nothing else."""
        to_out: Any = self.to_out[0]
        weights = (to_out.weight, to_out.bias) if is_plain(to_out) else ()
        return bool(weights) and plain_inference(*weights) and not self.training

    def _by_row(self, x: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """`forward` for inference on a CPU, each row with its own `[H, L, D]`."""
        out = torch.empty_like(x)
        for row, (key, value) in enumerate(zip(keys, values, strict=True)):
            if value.shape[1] == 1:
                # There is nothing to choose from: every query reads the one value.
                out[row] = self._project(value.reshape(1, 1, -1))[0]
                continue
            query = self._query(x[row : row + 1], value.dtype)
            if key.shape[1] < SHORT * query.shape[-1] and self._projects_plainly():
                to_out: Any = self.to_out[0]
                out[row] = attend_and_project(query[0], key, value, to_out.weight, to_out.bias)
                continue
            read = torch.empty_like(query)
            attend_row(query[0], key, value, read[0])
            out[row] = self._project(read.flatten(2))[0]
        return out


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention with fp32 scores: `[B, H, N, D]` x `[B, H, L, D]` to `[B, H, N, D]`."""
    wide = torch.promote_types(query.dtype, torch.float32)
    # Autocast would take the fp32 scores back to half precision.
    with torch.autocast(query.device.type, enabled=False):
        query_wide = query.to(wide) * query.shape[-1] ** -0.5
        scores = query_wide @ key.to(wide).transpose(-1, -2)  # [B, H, N, L]
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ value.to(wide)).to(query.dtype)
