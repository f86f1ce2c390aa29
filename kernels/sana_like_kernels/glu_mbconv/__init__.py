"""SiLU, depthwise 3x3 and gate of the SANA feed-forward, in one call."""

from __future__ import annotations

from torch import Tensor

from sana_like_kernels.glu_mbconv.reference import glu_depthwise_reference

__all__ = ["glu_depthwise", "glu_depthwise_reference"]


def glu_depthwise(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """SiLU, zero-padded depthwise 3x3, then value times SiLU of gate.

    Args:
        hidden: `[B, Y, X, 2h]`, channels last.
        weight: `[2h, 1, 3, 3]`.
        bias: `[2h]` or `None`.

    Returns:
        `[B, Y, X, h]`.

    Raises:
        ValueError: channels of `hidden` and `weight` differ.
    """
    if hidden.ndim != 4 or hidden.shape[-1] != weight.shape[0]:
        raise ValueError(
            f"glu_depthwise needs hidden [B, Y, X, {weight.shape[0]}], got {tuple(hidden.shape)}"
        )
    return glu_depthwise_reference(hidden, weight, bias)
