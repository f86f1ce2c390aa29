"""What a forward pass costs, from the configuration alone.

Legend: `B` batch, `N` picture tokens, `L` text tokens, `C` width, `D` head width, `X` width of the
cross-attention, `h` hidden width of the feed-forward.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from sana_like.layers.embeddings import FREQUENCIES


def widths(config: Any) -> tuple[int, int, int]:
    """C, X and h of a configuration."""
    dim = config.num_attention_heads * config.attention_head_dim
    cross = config.num_cross_attention_heads * config.cross_attention_head_dim
    return dim, cross, int(config.mlp_ratio * dim)


def grid_tokens(config: Any, height: int, width: int, frames: int = 1) -> int:
    """N of a latent of `frames` x `height` x `width`.

    Raises:
        ValueError: a side is not a positive multiple of the patch size, or a picture's model is
            given several frames.
    """
    patch = config.patch_size
    sides = (1, patch, patch) if isinstance(patch, int) else tuple(patch)
    if isinstance(patch, int) and frames != 1:
        raise ValueError(f"a latent picture has one frame, not {frames}")
    size = (frames, height, width)
    if min(size) < 1 or any(side % cell for side, cell in zip(size, sides, strict=True)):
        raise ValueError(
            f"a latent of {'x'.join(map(str, size))} (frames, height, width) has no grid of "
            f"{'x'.join(map(str, sides))} patches; give positive multiples of the patch size (in "
            "latent pixels, not picture pixels)"
        )
    return math.prod(size) // math.prod(sides)


def forward_flops(
    config: Any, n: int, tokens: int, batch: int, *, outer_macs: int, temporal_taps: int = 0
) -> int:
    """Floating-point operations of one forward pass, two per multiply-add of a product.

    Element-wise work (norms, activations, gates) is left out: it is bound by memory.

    Args:
        config: of the model.
        n: N, see `grid_tokens`.
        tokens: L.
        batch: B.
        outer_macs: multiply-adds per picture token outside the blocks.
        temporal_taps: of a convolution over time in each feed-forward.
    """
    dim, cross, hidden = widths(config)
    mixer = 4 * n * dim * dim + n * dim * (2 * config.attention_head_dim + 1)
    reader = 2 * n * dim * cross + 2 * tokens * dim * cross + 2 * n * tokens * cross
    feed_forward = 3 * n * hidden * dim + 9 * n * 2 * hidden + temporal_taps * n * dim * dim
    text = tokens * dim * (config.caption_channels + dim)
    time = (FREQUENCIES + dim) * dim * (2 if config.guidance_embeds else 1) + 6 * dim * dim
    blocks = config.num_layers * (mixer + reader + feed_forward)
    return 2 * batch * (blocks + text + time + n * outer_macs)


def activation_bytes(
    config: Any, n: int, tokens: int, batch: int, dtype: torch.dtype, *, positions: bool = False
) -> int:
    """Peak bytes that a forward pass without gradients holds beside the weights, estimated.

    The stream before and inside a block, its normalised copy and the wider of two moments: three
    tensors of the feed-forward's expansion, or the attention with its fp32 copies (two more where
    positions turn them); and the text's keys and values.
    """
    dim, cross, hidden = widths(config)
    size, wide = dtype.itemsize, max(dtype.itemsize, 4)
    expansion = 3 * 2 * hidden * size
    attention = 3 * dim * size + (7 if positions else 5) * dim * wide
    per_token = 3 * dim * size + max(expansion, attention)
    text = config.num_layers * 2 * tokens * cross * size
    return batch * (n * per_token + text)
