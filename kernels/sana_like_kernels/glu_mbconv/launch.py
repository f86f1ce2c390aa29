"""Ops that launch the kernels of GLUMBConv, with fakes and autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sana_like_kernels import tuning
from sana_like_kernels.dispatch import kernel_op, launch


def _tiles(height: int, width: int, options: dict[str, int]) -> int:
    return -(-height // options["ROWS"]) * -(-width // options["BLOCK_X"])


def _gate(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    expand_bias: Tensor | None,
    grad: Tensor | None,
) -> Tensor:
    from sana_like_kernels.glu_mbconv.triton import gate_kernel

    b, y, x, channels = hidden.shape
    half = channels // 2
    options = tuning.options("glu_gate", int(half), hidden.dtype)
    shape = (b, y, x, half if grad is None else channels)
    # Sums over pixels follow, whose terms cancel: what they are taken of is not rounded before.
    kind = hidden.dtype if grad is None else torch.float32
    out = torch.empty(shape, dtype=kind, device=hidden.device)
    other = hidden if grad is None else grad
    launch(
        gate_kernel,
        (_tiles(y, x, options), -(-half // options["BLOCK_C"]), b),
        hidden=hidden,
        weight=weight,
        bias=weight if bias is None else bias,
        expand_bias=weight if expand_bias is None else expand_bias,
        grad=other,
        out=out,
        Y=y,
        X=x,
        C=half,
        **{f"stride_{axis}": hidden.stride(i) for i, axis in enumerate("byx")},
        **{f"stride_g{axis}": other.stride(i) for i, axis in enumerate("byx")},
        BIAS=bias is not None,
        EXPAND=expand_bias is not None,
        BACKWARD=grad is not None,
        **options,
    )
    return out


def forward(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, expand_bias: Tensor | None
) -> Tensor:
    """`[B, Y, X, 2h]` to `[B, Y, X, h]`; last stride 1, the other inputs contiguous."""
    return _gate(hidden, weight, bias, expand_bias, None)


def backward(
    grad: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    expand_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `hidden`, `weight`, of the convolution's bias and of the expansion's."""
    from sana_like_kernels.glu_mbconv.triton import backward_kernel

    b, y, x, channels = hidden.shape
    planes = _gate(hidden, weight, bias, expand_bias, grad)
    options = tuning.options("glu_backward", int(channels), hidden.dtype)
    tiles = _tiles(y, x, options)
    grad_hidden = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
    sums = torch.empty((b, tiles, 11, channels), dtype=torch.float32, device=hidden.device)
    launch(
        backward_kernel,
        (tiles, -(-channels // options["BLOCK_C"]), b),
        hidden=hidden,
        weight=weight,
        expand_bias=weight if expand_bias is None else expand_bias,
        planes=planes,
        grad_hidden=grad_hidden,
        sums=sums,
        Y=y,
        X=x,
        C=channels,
        **{f"stride_{axis}": hidden.stride(i) for i, axis in enumerate("byx")},
        EXPAND=expand_bias is not None,
        **options,
    )
    total = sums.sum((0, 1)).to(weight.dtype)
    grad_weight = total[:9].t().reshape(weight.shape)
    return grad_hidden, grad_weight.contiguous(), total[9].clone(), total[10].clone()


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    hidden, weight, bias, expand_bias = ctx.saved_tensors
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grads = backward_op(grad, hidden, weight, bias, expand_bias)
    return (
        grads[0],
        grads[1],
        None if bias is None else grads[2].to(bias.dtype),
        None if expand_bias is None else grads[3].to(expand_bias.dtype),
    )


forward_op = kernel_op("glu_mbconv", forward)
backward_op = kernel_op("glu_mbconv_backward", backward)
forward_op.register_autograd(_backward, setup_context=_setup_context)
