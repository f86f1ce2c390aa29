"""Checks and preparation of arguments that several ops share."""

from __future__ import annotations

import torch
from torch import Tensor


def check_tensors(op: str, alike: dict[str, Tensor], **others: Tensor | None) -> None:
    """Raise ValueError unless the tensors are floating point and on one device.

    Args:
        op: name for the message.
        alike: name and tensor of those that must also share one dtype. Under autocast they need
            not: there the layers before an op decide their dtypes.
        others: weights, modulation and tables, which may be wider than the tokens.
    """
    named = alike | {name: tensor for name, tensor in others.items() if tensor is not None}
    first = next(iter(alike.values()))
    for name, tensor in named.items():
        if not tensor.dtype.is_floating_point:
            raise ValueError(f"{op} needs floating-point tensors, but {name} is {tensor.dtype}")
        if tensor.device != first.device:
            raise ValueError(
                f"{op} needs all tensors on {first.device}, but {name} is on {tensor.device}"
            )
    if torch.is_autocast_enabled(first.device.type):
        return
    if any(tensor.dtype != first.dtype for tensor in alike.values()):
        given = ", ".join(f"{name} {tensor.dtype}" for name, tensor in alike.items())
        raise ValueError(f"{op} needs one dtype, got {given}; convert them to that of the first")


def check_eps(op: str, **values: float) -> None:
    """Raise ValueError for an `eps` that is negative, infinite or NaN."""
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise ValueError(f"{op} needs {name} to be finite and at least 0, got {value}")


def check_rope(op: str, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> None:
    """Raise ValueError unless `rope` is `None` or two tables `[N, D / 2]` for `x [B, N, H, D]`."""
    if rope is None:
        return
    wanted = (x.shape[1], x.shape[3] // 2)
    if x.shape[3] % 2 or any(tuple(table.shape) != wanted for table in rope):
        raise ValueError(
            f"{op} needs an even head width and rope tables of shape {wanted} for tokens of shape "
            f"{tuple(x.shape)}, got {[tuple(table.shape) for table in rope]}"
        )
    check_tensors(op, {"query": x}, cos=rope[0], sin=rope[1])


def unit_stride(x: Tensor) -> Tensor:
    """`x`, copied if its last axis is not contiguous: kernels read that axis as one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()


def wide_table(table: Tensor) -> Tensor:
    """A table of cosines or sines as kernels read it: contiguous, fp32."""
    return table.to(torch.float32).contiguous()
