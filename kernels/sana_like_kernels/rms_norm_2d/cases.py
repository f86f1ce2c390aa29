"""Calls at the sizes of published models, for the ahead-of-time check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch


def cases(*, every: bool = True) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and call, forward and backward, on tensors without memory.

    Args:
        every: also those that differ little from another.
    """
    from sana_like_kernels.rms_norm_2d import launch

    for dtype in (torch.bfloat16, torch.float32):
        for channels in (24, 128, 256, 512, 1024, 2048):
            x = torch.empty(1, 64, 64, channels, dtype=dtype, device="meta")
            weight = x.new_empty(channels)
            for activation, residual in (("none", x), ("relu", None), ("silu", None)):
                rare = dtype.itemsize > 2 or activation == "relu"
                if not every and rare and channels < 2048:
                    continue
                name = f"{str(dtype).removeprefix('torch.')} C={channels} {activation}"
                name += "" if residual is None else " residual"
                yield name, partial(launch.forward, x, weight, weight, residual, activation, 1e-5)
                yield name, partial(launch.backward, x, x, weight, weight, activation, 1e-5)
