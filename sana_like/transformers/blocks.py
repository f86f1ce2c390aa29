"""The block that every SANA transformer repeats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sana_like.attention.cross import CrossAttention
from sana_like.layers.modulation import ModulatedLayerNorm


class SanaTransformerBlock(nn.Module):
    """Token mixer, cross-attention, feed-forward (SANA, arXiv 2410.10629, figure 5).

    The time modulates the mixer and the feed-forward (scale, shift and gate); the cross-attention
    has neither norm nor gate.

    Args:
        dim: width C.
        mixer: `mix(x, *, grid, rope, cond, state, bypass) -> (y, state)`.
        cross_attention: reads the text.
        feed_forward: `[B, Y, X, C]` to `[B, Y, X, C]`.
        norm_eps: of both LayerNorms.
        norm_affine: whether the feed-forward's LayerNorm has weights of its own.
    """

    def __init__(
        self,
        dim: int,
        mixer: nn.Module,
        cross_attention: CrossAttention,
        feed_forward: nn.Module,
        *,
        norm_eps: float = 1e-6,
        norm_affine: bool = False,
    ) -> None:
        super().__init__()
        self.norm1 = ModulatedLayerNorm(dim, norm_eps)
        self.attn1 = mixer
        self.norm2 = ModulatedLayerNorm(dim, norm_eps, affine=norm_affine)
        self.attn2 = cross_attention
        self.ff = feed_forward
        self.scale_shift_table = nn.Parameter(torch.randn(6, dim) / dim**0.5)

    def project_text(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, L, C]` to the keys and values that `forward` reads, each `[B, H, L, D]`."""
        return self.attn2.project_text(text)

    def forward(
        self,
        hidden_states: Tensor,
        modulation: Tensor,
        text_key: Tensor,
        text_value: Tensor,
        text_mask: Tensor | None,
        grid: tuple[int, int, int],
        rope: Any = None,
        cond: Any = None,
        bypass: Tensor | None = None,
    ) -> Tensor:
        """Run the block over whole sequences.

        Args:
            hidden_states: `[B, N, C]`, N = frames * height * width.
            modulation: `[B, 6, C]`, added to the block's table: shift, scale and gate of the
                mixer, then of the feed-forward.
            text_key, text_value: `[B, H, L, D]`.
            text_mask: bool `[B, L]` or `None`.
            grid: (frames, height, width).
            rope, cond: what the mixer reads of positions and conditions.
            bypass: bool `[B]`, rows whose mixer is perturbed (see `ReLULinearAttention`).

        Returns:
            `[B, N, C]` in the dtype of `hidden_states`.
        """
        x = hidden_states
        # A table kept in fp32 must not turn the stream of a half-precision model into fp32.
        table = (self.scale_shift_table + modulation).to(x.dtype)
        shift_mix, scale_mix, gate_mix, shift_ff, scale_ff, gate_ff = table.chunk(6, dim=1)

        normed = self.norm1(x, shift_mix, scale_mix)
        # The mixer's result is not named: it would be held in memory through the feed-forward.
        x = torch.addcmul(
            x, gate_mix, self.attn1(normed, grid=grid, rope=rope, cond=cond, bypass=bypass)[0]
        )
        del normed
        x = x + self.attn2(x, text_key, text_value, text_mask)
        frames, height, width = grid
        planes = self.norm2(x, shift_ff, scale_ff).unflatten(1, (frames, height, width))
        planes = self.ff(planes.flatten(0, 1)).unflatten(0, (-1, frames))  # [B, F, Y, X, C]
        return torch.addcmul(x, gate_ff, planes.flatten(1, 3))
