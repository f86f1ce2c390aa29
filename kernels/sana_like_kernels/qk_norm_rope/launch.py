"""Ops that launch the kernels of norm and rotation, with fakes and autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sana_like_kernels import tuning
from sana_like_kernels.dispatch import kernel_op, launch

WIDEST = 8192
# Tokens whose weight gradients one program sums, where a block has not more.
TOKENS = 32


def _settings(x: Tensor, weight: Tensor, cos: Tensor | None, sin: Tensor | None) -> dict[str, Any]:
    width = int(x.shape[2] * x.shape[3])
    return {
        "x": x,
        "weight": weight,
        "cos": x if cos is None else cos,
        "sin": x if sin is None else sin,
        "N": x.shape[1],
        "C": width,
        "D": int(x.shape[3]),
        "HALF": 1 << (width // 2 - 1).bit_length(),
        "ROPE": cos is not None,
        **tuning.options("row", width, x.dtype),
    }


def _strides(name: str, x: Tensor) -> dict[str, int]:
    return {f"stride_{name}{axis}": x.stride(i) for i, axis in enumerate("bnh")}


def forward(
    x: Tensor, weight: Tensor, cos: Tensor | None, sin: Tensor | None, eps: float
) -> Tensor:
    """Norm over heads and channels of `x [B, N, H, D]`, then rotation; result contiguous."""
    from sana_like_kernels.qk_norm_rope.triton import norm_rope_kernel

    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    settings = _settings(x, weight, cos, sin)
    launch(
        norm_rope_kernel,
        (-(-x.shape[1] // settings["ROWS"]), x.shape[0]),
        out=out,
        eps=eps,
        **_strides("", x),
        **settings,
    )
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Gradients of `x` and `weight`."""
    from sana_like_kernels.qk_norm_rope.triton import norm_rope_backward_kernel

    b, n = x.shape[:2]
    settings = _settings(x, weight, cos, sin)
    tokens = max(TOKENS, settings["ROWS"])
    parts = -(-n // tokens)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_weight = torch.empty((b, parts, settings["C"]), dtype=torch.float32, device=x.device)
    launch(
        norm_rope_backward_kernel,
        (parts, b),
        grad=grad,
        grad_x=grad_x,
        grad_weight=grad_weight,
        eps=eps,
        tokens=tokens,
        **_strides("g", grad),
        **_strides("x", x),
        **settings,
    )
    return grad_x, grad_weight.sum((0, 1)).to(weight.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:4])
    ctx.eps = inputs[4]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    return *norm_rope_backward_op(grad, *ctx.saved_tensors, ctx.eps), None, None, None


norm_rope_op = kernel_op("norm_rope", forward)
norm_rope_backward_op = kernel_op("norm_rope_backward", backward)
norm_rope_op.register_autograd(_backward, setup_context=_setup_context)
