"""RMSNorm over channels, activation and residual of the autoencoders, in one call."""

from __future__ import annotations

from torch import Tensor

from sana_like_kernels.arguments import check_eps, check_tensors
from sana_like_kernels.dispatch import Backend, unsupported_dtype, use_triton
from sana_like_kernels.inference import plain_inference
from sana_like_kernels.rms_norm_2d.cpu import rms_norm_2d_inference
from sana_like_kernels.rms_norm_2d.reference import rms_norm_2d_reference

__all__ = ["rms_norm_2d", "rms_norm_2d_reference"]

ACTIVATIONS = (None, "relu", "silu")
WIDEST = 8192


def rms_norm_2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    activation: str | None = None,
    eps: float = 1e-5,
    backend: Backend | None = None,
) -> Tensor:
    """`act(x / rms(x) * weight + bias) + residual`, rms over the channels of one pixel, in fp32.

    Args:
        x: `[..., C]`, channels last, e.g. `[B, Y, X, C]`.
        weight: `[C]`, of any floating dtype.
        bias: `[C]` or `None`.
        residual: like `x` (its dtype too, except under autocast), or `None`.
        activation: `relu`, `silu` or `None`.
        eps: added to the mean square, at least 0.
        backend: `auto`, `triton` or `torch`; `None` takes that of `use_backend`.

    Returns:
        `[..., C]`, in the dtype of `x`.

    Raises:
        ValueError: unknown `activation`, shapes or dtypes do not fit, a tensor of integers or on
            another device, negative `eps`, or `backend` cannot act.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is unknown; use relu, silu or None")
    tokens = {"x": x} if residual is None else {"x": x, "residual": residual}
    check_tensors("rms_norm_2d", tokens, weight=weight, bias=bias)
    check_eps("rms_norm_2d", eps=eps)
    vectors = [weight] if bias is None else [weight, bias]
    if any(vector.shape != x.shape[-1:] for vector in vectors):
        raise ValueError(
            f"rms_norm_2d needs weight and bias [{x.shape[-1]}], got "
            f"{[tuple(vector.shape) for vector in vectors]}"
        )
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"residual must be {tuple(x.shape)}, got {tuple(residual.shape)}")
    obstacle = unsupported_dtype(x, *vectors)
    if x.shape[-1] > WIDEST:
        obstacle = f"the kernels hold at most {WIDEST} channels, not {x.shape[-1]}"
    if not use_triton("rms_norm_2d", backend, x.device, obstacle):
        if plain_inference(x, weight, bias, residual) and x.is_contiguous():
            return rms_norm_2d_inference(
                x, weight, bias, residual=residual, activation=activation, eps=eps
            )
        out = rms_norm_2d_reference(
            x, weight, bias, residual=residual, activation=activation, eps=eps
        )
        return out.to(x.dtype)
    from sana_like_kernels.rms_norm_2d.launch import forward_op

    out = forward_op(
        x.contiguous(),
        weight.contiguous(),
        None if bias is None else bias.contiguous(),
        None if residual is None else residual.contiguous(),
        activation or "none",
        eps,
    )
    return out
