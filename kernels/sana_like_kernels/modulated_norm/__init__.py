"""LayerNorm or RMSNorm with AdaLN scale and shift, and the gated residual before it."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from sana_like_kernels.arguments import check_eps, check_tensors, unit_stride
from sana_like_kernels.dispatch import Backend, unsupported_dtype, use_triton
from sana_like_kernels.inference import plain_inference
from sana_like_kernels.modulated_norm.cpu import modulated_norm_inference
from sana_like_kernels.modulated_norm.reference import (
    gated_residual_reference,
    modulated_norm_reference,
)

__all__ = [
    "gated_residual_norm",
    "modulated_layer_norm",
    "modulated_norm",
    "modulated_norm_reference",
]

Kind = Literal["layer_norm", "rms_norm"]
KINDS = ("layer_norm", "rms_norm")
WIDEST = 8192


def modulated_norm(
    x: Tensor,
    shift: Tensor,
    scale: Tensor,
    *,
    kind: Kind = "layer_norm",
    eps: float = 1e-6,
    backend: Backend | None = None,
) -> Tensor:
    """`norm(x) * (1 + scale) + shift`, the norm without weights.

    Args:
        x: `[B, N, C]`.
        shift, scale: broadcastable to `x`, e.g. `[B, 1, C]`, or one per frame, `[B, F, C]`, where
            the N tokens are F frames one after another; of any floating dtype.
        kind: `layer_norm` or `rms_norm`.
        eps: of the variance or the mean square, at least 0.
        backend: `auto`, `triton` or `torch`; `None` takes that of `use_backend`.

    Returns:
        `[B, N, C]`, in the dtype of `x`.

    Raises:
        ValueError: unknown `kind`, shapes do not fit, a tensor of integers or on another device,
            negative `eps`, or `backend` cannot act.
    """
    _check("modulated_norm", kind, eps, {"x": x}, shift=shift, scale=scale)
    obstacle = _obstacle(x, shift, scale)
    if not use_triton("modulated_norm", backend, x.device, obstacle):
        return _plain(x, shift, scale, kind, eps)
    from sana_like_kernels.modulated_norm.launch import forward_op

    shift, scale = _per_frame(x, shift, scale)
    out, _ = forward_op(unit_stride(x), None, None, shift, scale, kind == "rms_norm", eps)
    return out


def gated_residual_norm(
    x: Tensor,
    branch: Tensor,
    gate: Tensor | None,
    shift: Tensor,
    scale: Tensor,
    *,
    kind: Kind = "layer_norm",
    eps: float = 1e-6,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """`r = x + gate * branch`, and the modulated norm of `r`, in one pass.

    Args:
        x, branch: `[B, N, C]`, of one dtype.
        gate: like `shift` and `scale`; `None` adds the branch as it is.
        shift, scale, kind, eps, backend: see `modulated_norm`.

    Returns:
        `r` and `norm(r) * (1 + scale) + shift`, both `[B, N, C]` in the dtype of `x`.

    Raises:
        ValueError: as `modulated_norm`, or `x` and `branch` differ in shape or dtype.
    """
    gates = [] if gate is None else [gate]
    tokens = {"x": x, "branch": branch}
    _check("gated_residual_norm", kind, eps, tokens, gate=gate, shift=shift, scale=scale)
    if branch.shape != x.shape or branch.dtype != x.dtype:
        raise ValueError(
            f"branch must be {tuple(x.shape)} {x.dtype} like x, got "
            f"{tuple(branch.shape)} {branch.dtype}"
        )
    obstacle = _obstacle(x, *gates, shift, scale)
    if not use_triton("gated_residual_norm", backend, x.device, obstacle):
        residual = x + branch if gate is None else gated_residual_reference(x, branch, gate)
        residual = residual.to(x.dtype)
        return residual, _plain(residual, shift, scale, kind, eps)
    from sana_like_kernels.modulated_norm.launch import forward_op

    if gate is None:
        gate = x.new_ones(1, 1, 1)
    gate, shift, scale = _per_frame(x, gate, shift, scale)
    out, residual = forward_op(
        unit_stride(x), unit_stride(branch), gate, shift, scale, kind == "rms_norm", eps
    )
    return residual, out


def modulated_layer_norm(x: Tensor, shift: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    """`modulated_norm` with LayerNorm: `LayerNorm(x) * (1 + scale) + shift`.

    Args:
        x: `[B, N, C]`.
        shift, scale: see `modulated_norm`.
        eps: of the variance.

    Returns:
        `[B, N, C]`, in the dtype of `x`.
    """
    return modulated_norm(x, shift, scale, eps=eps)


def _check(
    op: str, kind: str, eps: float, tokens: dict[str, Tensor], **vectors: Tensor | None
) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown; use one of {', '.join(KINDS)}")
    x = tokens["x"]
    if x.ndim != 3:
        raise ValueError(f"{op} needs tokens [B, N, C], got {tuple(x.shape)}")
    check_tensors(op, tokens, **vectors)
    check_eps(op, eps=eps)
    b, n, width = x.shape
    shapes = {
        name: (1,) * (3 - v.ndim) + tuple(v.shape) for name, v in vectors.items() if v is not None
    }
    frames = {shape[-2] for shape in shapes.values()}
    for name, shape in shapes.items():
        if len(shape) > 3 or shape[0] not in (1, b) or shape[-1] not in (1, width):
            raise ValueError(f"{name} must be [{b}, F, {width}], got {shape}")
    if len(frames) > 1 or 0 in frames or n % max(frames):
        raise ValueError(f"{op} needs one frame count that divides {n} tokens; got {shapes}")


def _plain(x: Tensor, shift: Tensor, scale: Tensor, kind: Kind, eps: float) -> Tensor:
    rms = kind == "rms_norm"
    if plain_inference(x, shift, scale):
        return modulated_norm_inference(x, shift, scale, rms=rms, eps=eps)
    return modulated_norm_reference(x, shift, scale, rms=rms, eps=eps).to(x.dtype)


def _obstacle(x: Tensor, *vectors: Tensor) -> str | None:
    if x.shape[-1] > WIDEST:
        return f"the kernels hold at most {WIDEST} channels, not {x.shape[-1]}"
    return unsupported_dtype(x, *vectors)


def _per_frame(x: Tensor, *vectors: Tensor) -> list[Tensor]:
    """All vectors as `[B, F, C]` views of one F."""
    frames = max((vector.shape[-2] for vector in vectors if vector.ndim >= 2), default=1)
    shape = (x.shape[0], frames, x.shape[2])
    return [unit_stride(vector.expand(shape)) for vector in vectors]
