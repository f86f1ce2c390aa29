"""The block that every SANA transformer repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sana_like.attention.cross import CrossAttention
from sana_like.layers.modulation import ModulatedLayerNorm, gated_residual
from sana_like.layers.temporal import GLUMBConvTemp
from sana_like.state import BlockState, Tensors


class SanaTransformerBlock(nn.Module):
    """Token mixer, cross-attention, feed-forward (SANA, arXiv 2410.10629, figure 5).

    The time modulates the mixer and the feed-forward (scale, shift and gate); the cross-attention
    has neither norm nor gate.

    Args:
        dim: width C.
        mixer: `mix(x, *, grid, rope, cond, state, chunks, bypass) -> (y, state)`.
        cross_attention: reads the text.
        feed_forward: `[B, Y, X, C]` to `[B, Y, X, C]`, or a `GLUMBConvTemp`.
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
        state: BlockState | None = None,
        chunks: Sequence[int] | None = None,
    ) -> Tensor | tuple[Tensor, BlockState]:
        """Run the block over whole sequences, or over the next chunks of a stream.

        Args:
            hidden_states: `[B, N, C]`, N = frames * height * width.
            modulation: `[B, 6, C]`, or `[B, F, 6, C]` for one of each frame (F may be 1), added to
                the block's table: shift, scale and gate of the mixer, then of the feed-forward.
            text_key, text_value: `[B, H, L, D]`.
            text_mask: bool `[B, L]` or `None`.
            grid: (frames, height, width).
            rope, cond: what the mixer reads of positions and conditions.
            bypass: bool `[B]`, rows whose mixer is perturbed (see `SelfAttention`).
            state: of the chunks before; `None` for whole sequences.
            chunks: frames of each chunk of a stream; `None` takes all for one.

        Returns:
            `[B, N, C]` in the dtype of `hidden_states`; with a `state` also the one after.
        """
        x = hidden_states
        # A table kept in fp32 must not turn the stream of a half-precision model into fp32.
        table = (self.scale_shift_table + modulation).to(x.dtype)
        if table.ndim == 3:
            table = table.unsqueeze(1)  # [B, F, 6, C]
        shift_mix, scale_mix, gate_mix, shift_ff, scale_ff, gate_ff = table.unbind(2)

        normed = self.norm1(x, shift_mix, scale_mix)
        mixed, mixer_state = self.attn1(
            normed,
            grid=grid,
            rope=rope,
            cond=cond,
            state=None if state is None else state.mixer,
            chunks=chunks,
            bypass=bypass,
        )
        x = gated_residual(x, gate_mix, mixed)
        del normed, mixed  # they would be held in memory through the feed-forward
        read = self.attn2(x, text_key, text_value, text_mask)
        x, normed = self.norm2.after(x, read, shift_ff, scale_ff)
        planes = normed.unflatten(1, grid)  # [B, F, Y, X, C]
        del normed, read
        past = None if state is None else state.feed_forward
        planes, ff_state = self._feed_forward(planes, past, chunks)
        x = gated_residual(x, gate_ff, planes.flatten(1, 3))
        return x if state is None else (x, BlockState(mixer_state, ff_state or {}))

    def _feed_forward(
        self, planes: Tensor, state: Tensors | None, chunks: Sequence[int] | None
    ) -> tuple[Tensor, Tensors | None]:
        """`[B, F, Y, X, C]` to the same shape, and the state after where there is one."""
        if isinstance(self.ff, GLUMBConvTemp):
            return self.ff(planes, state=state, chunks=chunks)
        return self.ff(planes.flatten(0, 1)).unflatten(0, planes.shape[:2]), None
