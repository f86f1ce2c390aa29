"""Fused operators of the SANA family, each beside the plain PyTorch code that specifies it.

This is the lowest layer: it imports torch and nothing else of the package. `use_backend` chooses
between Triton kernels and plain PyTorch where the choice by itself is not wanted; `report` says
what acts, and why.
"""

from __future__ import annotations

from sana_like_kernels.dispatch import OpStatus, report, use_backend
from sana_like_kernels.glu_mbconv import glu_depthwise, glu_mbconv
from sana_like_kernels.linear import linear
from sana_like_kernels.linear_attention import block_causal_linear_attention, linear_attention
from sana_like_kernels.modulated_norm import (
    gated_residual_norm,
    modulated_layer_norm,
    modulated_norm,
)
from sana_like_kernels.qk_norm_rope import qk_norm_rope
from sana_like_kernels.rms_norm_2d import rms_norm_2d

__all__ = [
    "OpStatus",
    "block_causal_linear_attention",
    "gated_residual_norm",
    "glu_depthwise",
    "glu_mbconv",
    "linear",
    "linear_attention",
    "modulated_layer_norm",
    "modulated_norm",
    "qk_norm_rope",
    "report",
    "rms_norm_2d",
    "use_backend",
]
