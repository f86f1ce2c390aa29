"""Ops that launch the kernels of linear attention, with fakes and autograd."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sana_like_kernels import tuning
from sana_like_kernels.dispatch import interpreted, kernel_op, launch
from sana_like_kernels.qk_norm_rope.launch import norm_rope_backward_op

WIDEST_HEAD = 128
# Enough programs for two on each of the 132 units of a Hopper chip; more only makes partial sums.
PROGRAMS = 264
FEWEST_TOKENS = 256


def _padded(width: int) -> int:
    return max(16, 1 << (int(width) - 1).bit_length())


def _strides(name: str, x: Tensor) -> dict[str, int]:
    return {f"stride_{name}{axis}": x.stride(i) for i, axis in enumerate("bnh")}


def _settings(
    query: Tensor, norm: Tensor | None, cos: Tensor | None, sin: Tensor | None
) -> dict[str, Any]:
    """Arguments that every kernel takes; absent tensors are replaced by one that is not read."""
    return {
        "weight": query if norm is None else norm,
        "cos": query if cos is None else cos,
        "sin": query if sin is None else sin,
        "N": query.shape[1],
        "H": query.shape[2],
        "D": int(query.shape[3]),
        "BLOCK_D": _padded(query.shape[3]),
        "NORM": norm is not None,
        "ROPE": cos is not None,
        "PRECISION": _precision(query.dtype),
    }


def _precision(dtype: torch.dtype) -> str:
    """How products round: well below the dtype, on the matrix units of bf16 or tf32.

    Triton 3.9 fails to compile plain tf32 products of transposed tiles for sm_100. Its interpreter
    knows no bf16 products; it multiplies in fp32 whatever is asked.
    """
    if interpreted():
        return "ieee"
    return "tf32x3" if dtype == torch.float32 else "bf16x3"


def _sums_options(query: Tensor) -> dict[str, int]:
    width = int(query.shape[3])
    options = tuning.options("attention_sums", width, query.dtype)
    return options | {"BLOCK_V": min(options["BLOCK_V"], _padded(width))}


def _splits(rows: int, tokens: int, block: int) -> tuple[int, int]:
    """Number of parts of the tokens, and tokens in each."""
    splits = max(1, min(PROGRAMS // max(rows, 1), tokens // FEWEST_TOKENS))
    part = -(-tokens // splits)
    return splits, -(-part // block) * block


def _rstd(x: Tensor, eps: float) -> Tensor:
    from sana_like_kernels.linear_attention.triton import row_rms_kernel

    b, n, h, d = x.shape
    rstd = torch.empty((b, n), dtype=torch.float32, device=x.device)
    width = int(h * d)
    options = tuning.options("row", width, x.dtype)
    launch(
        row_rms_kernel,
        (-(-n // options["ROWS"]), b),
        x=x,
        rstd=rstd,
        N=n,
        **_strides("", x),
        eps=eps,
        C=width,
        D=int(d),
        BLOCK_C=_padded(width),
        **options,
    )
    return rstd


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    norm_query: Tensor | None,
    norm_key: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    state_kv: Tensor | None,
    state_sum: Tensor | None,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output, sums with those of the state, and 1 / rms of queries and keys (empty without norms).

    Shapes: see `linear_attention_reference`; last strides are 1, `cos` and `sin` contiguous fp32.
    """
    from sana_like_kernels.linear_attention.triton import key_value_kernel, output_kernel

    b, n, h, d = query.shape
    settings = _settings(query, norm_query, cos, sin)
    nothing = torch.empty(0, dtype=torch.float32, device=query.device)
    normed = norm_query is not None and norm_key is not None
    rstd_query = _rstd(query, norm_eps) if normed else nothing
    rstd_key = _rstd(key, norm_eps) if normed else torch.empty_like(nothing)
    options = _sums_options(query)
    splits, tokens = _splits(b * h, n, options["BLOCK_N"])
    kv = nothing.new_empty((splits, b, h, d, d))
    key_sum = nothing.new_empty((splits, b, h, d))
    launch(
        key_value_kernel,
        (b * h, splits, _padded(d) // options["BLOCK_V"]),
        key=key,
        value=value,
        rstd=rstd_key,
        kv=kv,
        key_sum=key_sum,
        tokens=tokens,
        **_strides("k", key),
        **_strides("v", value),
        **{**settings, "weight": query if norm_key is None else norm_key},
        **options,
    )
    kv, key_sum = kv.sum(0), key_sum.sum(0)
    if state_kv is not None and state_sum is not None:
        kv, key_sum = kv + state_kv, key_sum + state_sum
    out = torch.empty((b, n, h, d), dtype=query.dtype, device=query.device)
    options = tuning.options("attention_tokens", int(d), query.dtype)
    launch(
        output_kernel,
        (b * h, -(-n // (options["BLOCK_N"] * options["BLOCKS"]))),
        query=query,
        rstd=rstd_query,
        kv=kv,
        key_sum=key_sum,
        out=out,
        eps=eps,
        DIVIDE=True,
        **_strides("q", query),
        **settings,
        **options,
    )
    return out, kv, key_sum, rstd_query, rstd_key


def backward(
    grad: Tensor,
    grad_kv: Tensor | None,
    grad_sum: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    norm_query: Tensor | None,
    norm_key: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    kv: Tensor,
    key_sum: Tensor,
    rstd_query: Tensor,
    rstd_key: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of (normalised) query and key, of value, and of the two sums."""
    from sana_like_kernels.linear_attention.triton import (
        backward_key_kernel,
        backward_query_kernel,
        backward_sums_kernel,
        output_kernel,
    )

    b, n, h, d = query.shape
    settings = _settings(query, norm_query, cos, sin)
    settings_key = {**settings, "weight": query if norm_key is None else norm_key}
    # What goes on into the backward of a norm is rounded once, at the end.
    narrow = query.dtype if norm_query is None else torch.float32
    grads = [query.new_empty((b, n, h, d), dtype=kind) for kind in (narrow, narrow, value.dtype)]
    inverse = torch.empty((b, h, n), dtype=torch.float32, device=query.device)
    slope = torch.empty_like(inverse)
    per_token = tuning.options("attention_tokens", int(d), query.dtype)
    grid = (b * h, -(-n // (per_token["BLOCK_N"] * per_token["BLOCKS"])))
    launch(
        backward_query_kernel,
        grid,
        query=query,
        rstd=rstd_query,
        kv=kv,
        key_sum=key_sum,
        grad=grad,
        grad_query=grads[0],
        inverse=inverse,
        slope=slope,
        eps=eps,
        **_strides("q", query),
        **_strides("g", grad),
        **settings,
        **per_token,
    )
    options = _sums_options(query)
    splits, tokens = _splits(b * h, n, options["BLOCK_N"])
    parts = torch.empty((splits, b, h, d, d), dtype=torch.float32, device=query.device)
    part_sums = torch.empty((splits, b, h, d), dtype=torch.float32, device=query.device)
    launch(
        backward_sums_kernel,
        (b * h, splits, _padded(d) // options["BLOCK_V"]),
        query=query,
        rstd=rstd_query,
        grad=grad,
        inverse=inverse,
        slope=slope,
        grad_kv=parts,
        grad_key_sum=part_sums,
        tokens=tokens,
        **_strides("q", query),
        **_strides("g", grad),
        **settings,
        **options,
    )
    total, total_sum = parts.sum(0), part_sums.sum(0)
    total = total if grad_kv is None else total + grad_kv
    total_sum = total_sum if grad_sum is None else total_sum + grad_sum
    launch(
        backward_key_kernel,
        grid,
        key=key,
        value=value,
        rstd=rstd_key,
        grad_kv=total,
        grad_key_sum=total_sum,
        grad_key=grads[1],
        **_strides("k", key),
        **_strides("v", value),
        **settings_key,
        **per_token,
    )
    launch(
        output_kernel,
        grid,
        query=key,
        rstd=rstd_key,
        kv=total,
        key_sum=total_sum,
        out=grads[2],
        eps=eps,
        DIVIDE=False,
        **_strides("q", key),
        **settings_key,
        **per_token,
    )
    return grads[0], grads[1], grads[2], total, total_sum


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:7], *output[1:])
    ctx.has_state = inputs[7] is not None
    ctx.eps, ctx.norm_eps = inputs[9:]


def _backward(
    ctx: Any, grad: Tensor | None, grad_kv: Tensor | None, grad_sum: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    query, key, value, norm_query, norm_key, *rest = ctx.saved_tensors
    grad = torch.zeros_like(value) if grad is None else grad
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grad_query, grad_key, grad_value, state_kv, state_sum = backward_op(
        grad, grad_kv, grad_sum, query, key, value, norm_query, norm_key, *rest, ctx.eps
    )
    grad_norms: list[Tensor | None] = [None, None]
    if norm_query is not None:
        grad_query, grad_norms[0] = norm_rope_backward_op(
            grad_query, query, norm_query, None, None, ctx.norm_eps
        )
        grad_key, grad_norms[1] = norm_rope_backward_op(
            grad_key, key, norm_key, None, None, ctx.norm_eps
        )
    states = (state_kv, state_sum) if ctx.has_state else (None, None)
    return grad_query, grad_key, grad_value, *grad_norms, None, None, *states, None, None


forward_op = kernel_op("linear_attention", forward)
backward_op = kernel_op("linear_attention_backward", backward)
forward_op.register_autograd(_backward, setup_context=_setup_context)
