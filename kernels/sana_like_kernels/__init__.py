"""Fused operators of the SANA family, each beside the plain PyTorch code that specifies it.

This is the lowest layer: it imports torch and nothing else of the package.
"""

from __future__ import annotations

from sana_like_kernels.glu_mbconv import glu_depthwise
from sana_like_kernels.linear_attention import linear_attention
from sana_like_kernels.modulated_norm import modulated_layer_norm

__all__ = ["glu_depthwise", "linear_attention", "modulated_layer_norm"]
