"""Checks and preparation of arguments that several ops share."""

from __future__ import annotations

import torch
from torch import Tensor


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


def unit_stride(x: Tensor) -> Tensor:
    """`x`, copied if its last axis is not contiguous: kernels read that axis as one piece."""
    return x if x.stride(-1) == 1 else x.contiguous()


def wide_table(table: Tensor) -> Tensor:
    """A table of cosines or sines as kernels read it: contiguous, fp32."""
    return table.to(torch.float32).contiguous()
