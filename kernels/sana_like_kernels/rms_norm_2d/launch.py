"""Ops that launch the kernels of the autoencoders' norm, with fakes and autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sana_like_kernels import tuning
from sana_like_kernels.dispatch import kernel_op, launch

# Pixels whose gradients of weight and bias one program sums, where a block has not more.
PIXELS = 64


def _settings(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> dict[str, Any]:
    width = int(x.shape[-1])
    return {
        "x": x,
        "weight": weight,
        "bias": weight if bias is None else bias,
        "R": x.numel() // width,
        "C": width,
        "BLOCK_C": max(16, 1 << (width - 1).bit_length()),
        "BIAS": bias is not None,
        "ACTIVATION": activation,
        **tuning.options("row", width, x.dtype),
    }


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    eps: float,
) -> Tensor:
    """Norm over the last axis, activation, residual; `x` and `residual` are contiguous."""
    from sana_like_kernels.rms_norm_2d.triton import norm_kernel

    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    settings = _settings(x, weight, bias, activation)
    launch(
        norm_kernel,
        (-(-settings["R"] // settings["ROWS"]),),
        residual=x if residual is None else residual,
        out=out,
        eps=eps,
        ADD=residual is not None,
        **settings,
    )
    return out


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, eps: float
) -> tuple[Tensor, Tensor]:
    """Gradients of `x`, and `[2, C]` of weight and bias; `grad` and `x` are contiguous."""
    from sana_like_kernels.rms_norm_2d.triton import norm_backward_kernel

    settings = _settings(x, weight, bias, activation)
    pixels = max(PIXELS, settings["ROWS"])
    parts = -(-settings["R"] // pixels)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sums = torch.empty((parts, 2, x.shape[-1]), dtype=torch.float32, device=x.device)
    launch(
        norm_backward_kernel,
        (parts,),
        grad=grad,
        grad_x=grad_x,
        sums=sums,
        eps=eps,
        pixels=pixels,
        **settings,
    )
    return grad_x, sums.sum(0)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, weight, bias, residual, ctx.activation, ctx.eps = inputs
    ctx.save_for_backward(x, weight, bias)
    ctx.added = residual is not None


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    grad_x, sums = backward_op(grad.contiguous(), x, weight, bias, ctx.activation, ctx.eps)
    grad_bias = None if bias is None else sums[1].to(bias.dtype)
    return grad_x, sums[0].to(weight.dtype), grad_bias, grad if ctx.added else None, None, None


forward_op = kernel_op("rms_norm_2d", forward)
backward_op = kernel_op("rms_norm_2d_backward", backward)
forward_op.register_autograd(_backward, setup_context=_setup_context)
