"""SiLU, depthwise 3x3 and gate of the SANA feed-forward, in one call."""

from __future__ import annotations

from torch import Tensor

from sana_like_kernels.arguments import check_tensors, unit_stride
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
        hidden: `[B, Y, X, 2h]`, channels last; frames of a video count as batch. Weight and biases
            have its dtype, except under autocast.
        weight: `[2h, 1, 3, 3]`.
        bias: `[2h]` or `None`, added after the convolution.
        expand_bias: `[2h]` or `None`, added before the SiLU: the bias of the 1x1 expansion, where
            that left it out.
        backend: `auto`, `triton` or `torch`; `None` takes that of `use_backend`.

    Returns:
        `[B, Y, X, h]`, in the dtype of `hidden`.

    Raises:
        ValueError: shapes do not fit, dtypes differ or are integers, devices differ, or `backend`
            cannot act.
    """
    channels = hidden.shape[-1]
    if hidden.ndim != 4 or channels % 2 or weight.shape != (channels, 1, 3, 3):
        raise ValueError(
            f"glu_mbconv needs hidden [B, Y, X, {len(weight)}] with an even number of channels and "
            f"weight [{channels}, 1, 3, 3], got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    given = {"bias": bias, "expand_bias": expand_bias}
    vectors = {name: vector for name, vector in given.items() if vector is not None}
    for name, vector in vectors.items():
        if vector.shape != (channels,):
            raise ValueError(f"{name} must be [{channels}], got {tuple(vector.shape)}")
    check_tensors("glu_mbconv", {"hidden": hidden, "weight": weight} | vectors)
    obstacle = unsupported_dtype(hidden, weight, *vectors.values())
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
