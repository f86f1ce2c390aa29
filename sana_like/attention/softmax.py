"""Softmax attention as a token mixer: the yardstick for the linear one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sana_like.attention.heads import QK_NORM_EPS
from sana_like.attention.mixer import Heads, Norms, SelfAttention
from sana_like.layers.rope import Rope
from sana_like.state import Tensors
from sana_like_kernels.linear_attention.reference import rms, turn


class SoftmaxAttention(SelfAttention):
    """`softmax(q k^T / sqrt(D)) v`, with positions on queries and keys.

    Over a stream every chunk reads the keys and values of all chunks before it, so that state and
    time per chunk grow with the length of the video: what linear attention is there to avoid.

    Args:
        dim, heads, head_dim, bias, dropout, qk_norm: see `SelfAttention`.

    Raises:
        ValueError: `qk_norm` is unknown.
    """

    def new_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """No keys and no values; they grow by those of every chunk."""
        shape = (batch, self.heads, 0, self.head_dim)
        names = ("keys", "values")
        return {name: torch.zeros(shape, device=device, dtype=dtype) for name in names}

    def _whole(self, heads: Heads, rope: Rope | None, norms: Norms | None) -> Tensor:
        query, key, value = _placed(heads, rope, norms)
        return F.scaled_dot_product_attention(query, key, value).transpose(1, 2)

    def _chunk(
        self, heads: Heads, rope: Rope | None, norms: Norms | None, state: Tensors
    ) -> tuple[Tensor, dict[str, Tensor]]:
        query, key, value = _placed(heads, rope, norms)
        keys = torch.cat([state["keys"], key], dim=2)  # [B, H, past + N, D]
        values = torch.cat([state["values"], value], dim=2)
        out = F.scaled_dot_product_attention(query, keys, values).transpose(1, 2)
        return out, {"keys": keys, "values": values}


def _placed(heads: Heads, rope: Rope | None, norms: Norms | None) -> list[Tensor]:
    """Query and key normed and turned, in fp32 between; all three `[B, H, N, D]`."""
    *pair, value = heads
    placed = []
    for index, x in enumerate(pair):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        if norms is not None:
            wide = rms(wide, norms[index], QK_NORM_EPS)
        wide = wide.transpose(1, 2)
        placed.append((wide if rope is None else turn(wide, *rope)).to(x.dtype))
    return [*placed, value.transpose(1, 2)]
