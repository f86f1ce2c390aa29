"""ReLU linear attention as a token mixer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sana_like.attention.heads import QK_NORM_EPS
from sana_like.attention.mixer import Heads, Norms, SelfAttention
from sana_like.layers.rope import Rope
from sana_like.state import Tensors
from sana_like_kernels import block_causal_linear_attention, linear_attention

# Added to the normaliser; only a query whose products are all zero notices it.
NORMALISER_EPS = 1e-15


class ReLULinearAttention(SelfAttention):
    """Every token reads every token through ReLU features (SANA, arXiv 2410.10629, section 3.2).

    `o_n = sum_m v_m <relu(k_m), relu(q_n)> / sum_m <relu(k_m), relu(q_n)>` per head, without a
    1/sqrt(D) scale, in time and memory linear in the number of tokens. Positions, where there are
    any, turn the features of the numerator only: turned ones can have negative products, which a
    normaliser must not. Over a stream the sums run on: `A = sum_m relu(k_m) v_m^T`, keys turned,
    and `z = sum_m relu(k_m)` are all that later chunks need (SANA-Video, arXiv 2509.24695, 3.3).

    Args:
        dim, heads, head_dim, bias, dropout, qk_norm: see `SelfAttention`.
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
        super().__init__(dim, heads, head_dim, bias=bias, dropout=dropout, qk_norm=qk_norm)
        self.clip = clip

    def new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The sums before the first token; fp32, or fp64 for a model of that `dtype`."""
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch, self.heads, self.head_dim)
        return {
            "key_value": torch.zeros(*shape, self.head_dim, device=device, dtype=wide),
            "key_sum": torch.zeros(shape, device=device, dtype=wide),
        }

    def _whole(self, heads: Heads, rope: Rope | None, norms: Norms | None) -> Tensor:
        return linear_attention(*heads, rope=rope, norms=norms, **self._settings())

    def _chunk(
        self, heads: Heads, rope: Rope | None, norms: Norms | None, state: Tensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        sums = (state["key_value"], state["key_sum"])
        out, sums = block_causal_linear_attention(
            *heads, sums, rope=rope, norms=norms, **self._settings()
        )
        return out, {"key_value": sums[0], "key_sum": sums[1]}

    def _settings(self) -> dict[str, Any]:
        return {"eps": NORMALISER_EPS, "norm_eps": QK_NORM_EPS, "clip": self.clip}
