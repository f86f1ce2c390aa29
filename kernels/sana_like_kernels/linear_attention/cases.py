"""Calls at the sizes of published models, for the ahead-of-time check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

# Head widths of SANA (32), its first autoencoder stages and small models (16, 60), SANA-Video
# (112), SANA-Video 2.0 (128).
WIDTHS = ((16, 8), (32, 70), (64, 20), (112, 20), (128, 20))
TOKENS = 1024
# Widths, plain and extended, of the cases that differ most.
FEWER: dict[torch.dtype, tuple[tuple[int, ...], tuple[int, ...]]] = {
    torch.bfloat16: ((32, 112, 128), (16, 32, 64, 112, 128)),
    torch.float16: ((32,), ()),
    torch.float32: ((), (16, 32, 64, 112, 128)),
}


def cases(*, every: bool = True) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and call, forward and backward, on tensors without memory.

    Args:
        every: also those that differ little from another.
    """
    from sana_like_kernels.linear_attention import launch

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for width, heads in WIDTHS:
            for extended in (False, True):
                if not every and width not in FEWER[dtype][extended]:
                    continue
                x = torch.empty(2, TOKENS, heads, width, dtype=dtype, device="meta")
                table = torch.empty(TOKENS, width // 2, device="meta") if extended else None
                norm = x.new_empty(heads * width) if extended else None
                sums = torch.empty(2, heads, width, width, device="meta")
                rstd = torch.empty(2, TOKENS, device="meta")
                name = f"{str(dtype).removeprefix('torch.')} D={width}"
                name += " rope norm" if extended else ""
                inputs = (x, x, x, norm, norm, table, table)
                yield name, partial(launch.forward, *inputs, None, None, 1e-15, 1e-5)
                rest = (sums, sums[..., 0], rstd, rstd, 1e-15)
                yield name, partial(launch.backward, x, None, None, *inputs, *rest)
