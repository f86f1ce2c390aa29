"""Product with a weight matrix, bias and activation in one call."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sana_like_kernels.inference import onednn_computes, plain_inference

__all__ = ["linear"]

# Names in oneDNN.
ACTIVATIONS = {None: "none", "silu": "swish"}
# With fewer rows the product reads weights, and the usual routine does that as quickly.
FEWEST_ROWS = 32


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
) -> Tensor:
    """`act(x W^T + b)`.

    Args:
        x: `[..., I]`.
        weight: `[O, I]`.
        bias: `[O]` or `None`.
        activation: `silu` or `None`.

    Returns:
        `[..., O]`.

    Raises:
        ValueError: unknown `activation`.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is unknown; use silu or None")
    if fused(x, weight, bias, activation):
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, weight, bias, ACTIVATIONS[activation], [], ""
        )
        return out
    out = F.linear(x, weight, bias)
    return out if activation is None else F.silu(out)


def fused(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> bool:
    """Whether oneDNN's own entry is taken.

    `F.linear` gives fp32 to another library, which on some processors runs at half of oneDNN's
    speed; bf16 goes to oneDNN by itself, so that there only the fused activation is a reason.
    """
    return (
        (activation is not None or x.dtype is torch.float32)
        and plain_inference(x, weight, bias)
        and x.dtype == weight.dtype
        and (bias is None or bias.dtype == x.dtype)
        and x.ndim > 1
        and x.numel() >= FEWEST_ROWS * x.shape[-1] > 0
        and weight.is_contiguous()
        and onednn_computes(x.dtype)
    )
