"""Ops that launch the kernels of norm and modulation, with fakes and autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sana_like_kernels import tuning
from sana_like_kernels.dispatch import kernel_op, launch

# Tokens whose gradients of the modulation one program sums, where a block has not more.
TOKENS = 32


def _settings(x: Tensor, scale: Tensor, rms: bool, gated: bool) -> dict[str, Any]:
    width = int(x.shape[2])
    return {
        "F": scale.shape[1],
        "S": x.shape[1] // scale.shape[1],
        "C": width,
        "BLOCK_C": max(16, 1 << (width - 1).bit_length()),
        "RMS": rms,
        "GATED": gated,
        **tuning.options("row", width, x.dtype),
    }


def _strides(name: str, axes: str, x: Tensor) -> dict[str, int]:
    return {f"stride_{name}{axis}": x.stride(i) for i, axis in enumerate(axes)}


def forward(
    x: Tensor,
    branch: Tensor | None,
    gate: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    rms: bool,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Result, and the residual sum (empty without `branch`); last strides are 1.

    Shapes: `x` and `branch` `[B, N, C]`, the others `[B, F, C]` where F divides N.
    """
    from sana_like_kernels.modulated_norm.triton import norm_kernel

    gated = branch is not None and gate is not None
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    residual = torch.empty(x.shape if gated else (0,), dtype=x.dtype, device=x.device)
    settings = _settings(x, scale, rms, gated)
    branch = x if branch is None else branch
    gate = scale if gate is None else gate
    launch(
        norm_kernel,
        # Only the first axis of a grid may be longer than 65535.
        (-(-settings["S"] // settings["ROWS"]), x.shape[0] * settings["F"]),
        x=x,
        branch=branch,
        gate=gate,
        shift=shift,
        scale=scale,
        residual=residual,
        out=out,
        eps=eps,
        **_strides("x", "bn", x),
        **_strides("y", "bn", branch),
        **_strides("g", "bf", gate),
        **_strides("t", "bf", shift),
        **_strides("s", "bf", scale),
        **settings,
    )
    return out, residual


def backward(
    grad: Tensor,
    grad_residual: Tensor | None,
    residual: Tensor,
    branch: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    rms: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `x`, of `branch` (empty without one), and `[3, B, F, C]` of shift, scale, gate.

    `grad`, `grad_residual` and `residual` are contiguous.
    """
    from sana_like_kernels.modulated_norm.triton import norm_backward_kernel

    b, n, width = residual.shape
    gated = branch is not None and gate is not None
    settings = _settings(residual, scale, rms, gated)
    tokens = max(TOKENS, settings["ROWS"])
    parts = -(-settings["S"] // tokens)
    grad_x = torch.empty((b, n, width), dtype=residual.dtype, device=residual.device)
    grad_branch = grad_x.new_empty((b, n, width) if gated else (0,))
    shape = (b, settings["F"], parts, 3, width)
    sums = torch.empty(shape, dtype=torch.float32, device=residual.device)
    branch = residual if branch is None else branch
    gate = scale if gate is None else gate
    launch(
        norm_backward_kernel,
        (b * settings["F"], parts),
        grad=grad,
        grad_residual=grad if grad_residual is None else grad_residual,
        residual=residual,
        branch=branch,
        gate=gate,
        scale=scale,
        grad_x=grad_x,
        grad_branch=grad_branch,
        sums=sums,
        eps=eps,
        tokens=tokens,
        **_strides("y", "bn", branch),
        **_strides("g", "bf", gate),
        **_strides("s", "bf", scale),
        **settings,
    )
    return grad_x, grad_branch, sums.sum(2).permute(2, 0, 1, 3).contiguous()


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, branch, gate, _, scale, ctx.rms, ctx.eps = inputs
    ctx.save_for_backward(x if branch is None else output[1], branch, gate, scale)
    ctx.shift_dtype = inputs[3].dtype


def _backward(ctx: Any, grad: Tensor, grad_residual: Tensor) -> tuple[Tensor | None, ...]:
    residual, branch, gate, scale = ctx.saved_tensors
    grad_x, grad_branch, sums = backward_op(
        grad.contiguous(),
        None if branch is None else grad_residual.contiguous(),
        residual.contiguous(),
        branch,
        gate,
        scale,
        ctx.rms,
        ctx.eps,
    )
    shift_scale = sums[0].to(ctx.shift_dtype), sums[1].to(scale.dtype)
    if branch is None:
        return grad_x, None, None, *shift_scale, None, None
    return grad_x, grad_branch, sums[2].to(gate.dtype), *shift_scale, None, None


forward_op = kernel_op("modulated_norm", forward)
backward_op = kernel_op("modulated_norm_backward", backward)
forward_op.register_autograd(_backward, setup_context=_setup_context)
