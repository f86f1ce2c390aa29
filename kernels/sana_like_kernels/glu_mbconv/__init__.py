"""SiLU, depthwise 3x3 and gate of the SANA feed-forward, in one call."""

from __future__ import annotations

from torch import Tensor

from sana_like_kernels.arguments import unit_stride
from sana_like_kernels.dispatch import Backend, unsupported_dtype, use_triton
from sana_like_kernels.glu_mbconv.cpu import glu_depthwise_inference, takes
from sana_like_kernels.glu_mbconv.reference import glu_depthwise_reference

__all__ = ["glu_depthwise", "glu_depthwise_reference", "glu_mbconv"]


def glu_mbconv(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    expand_bias: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Bias, SiLU, zero-padded depthwise 3x3, bias, then value times SiLU of gate.

    Args:
        hidden: `[B, Y, X, 2h]`, channels last; frames of a video count as batch.
        weight: `[2h, 1, 3, 3]`.
        bias: `[2h]` or `None`, added after the convolution.
        expand_bias: `[2h]` or `None`, added before the SiLU: the bias of the 1x1 expansion, where
            that left it out.
        backend: `auto`, `triton` or `torch`; `None` takes that of `use_backend`.

    Returns:
        `[B, Y, X, h]`, in the dtype of `hidden`.

    Raises:
        ValueError: channels of `hidden` and `weight` differ, or `backend` cannot act.
    """
    if hidden.ndim != 4 or hidden.shape[-1] != weight.shape[0] or weight.shape[0] % 2:
        raise ValueError(
            f"glu_mbconv needs hidden [B, Y, X, {weight.shape[0]}] with an even number of "
            f"channels, got {tuple(hidden.shape)}"
        )
    for name, vector in (("bias", bias), ("expand_bias", expand_bias)):
        if vector is not None and vector.shape != weight.shape[:1]:
            raise ValueError(f"{name} must be [{weight.shape[0]}], got {tuple(vector.shape)}")
    vectors = [vector for vector in (bias, expand_bias) if vector is not None]
    obstacle = unsupported_dtype(hidden, weight, *vectors)
    if not use_triton("glu_mbconv", backend, hidden.device, obstacle):
        if takes(hidden, weight, bias, expand_bias):
            return glu_depthwise_inference(hidden, weight, bias, expand_bias)
        return glu_depthwise_reference(hidden, weight, bias, expand_bias)
    from sana_like_kernels.glu_mbconv.launch import forward_op

    out: Tensor = forward_op(
        unit_stride(hidden),
        weight.contiguous(),
        None if bias is None else bias.contiguous(),
        None if expand_bias is None else expand_bias.contiguous(),
    )
    return out


def glu_depthwise(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`glu_mbconv` for a `hidden` that has the expansion's bias already."""
    return glu_mbconv(hidden, weight, bias)
