"""The op for inference on a CPU: a few pixels at a time, so that fp32 values stay in the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from sana_like_kernels.inference import pieces


def rms_norm_2d_inference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    residual: Tensor | None,
    activation: str | None,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """`act(x / rms(x) * weight + bias) + residual`, rounded once, at the end.

    Args:
        x: `[..., C]`, contiguous.
        weight, bias, residual, activation, eps: see `rms_norm_2d`.
        out: contiguous, like `x`; may be `x` or `residual` itself.

    Returns:
        `out`, or a new tensor.
    """
    out = torch.empty_like(x) if out is None else out
    width = x.shape[-1]
    rows, results = x.view(-1, width), out.view(-1, width)
    added = None if residual is None else residual.reshape(-1, width)
    scale = weight.float()
    shift = None if bias is None else bias.float()
    steps = pieces(len(rows), width)
    for start in steps:
        part = slice(start, start + steps.step)
        wide = rows[part].float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        # `float` copies half precision, which may then be overwritten.
        wide = torch.mul(
            wide,
            norm.square_().div_(width).add_(eps).rsqrt_(),
            out=None if wide.dtype == x.dtype else wide,
        )
        if shift is None:
            wide.mul_(scale)
        else:
            torch.addcmul(shift, wide, scale, out=wide)
        if activation is not None:
            wide = wide.relu_() if activation == "relu" else torch.nn.functional.silu(wide, True)
        if added is None:
            results[part].copy_(wide)
        else:
            torch.add(added[part], wide, out=results[part])
    return out
