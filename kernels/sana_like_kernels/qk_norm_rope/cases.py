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
    from sana_like_kernels.qk_norm_rope import launch

    for dtype in (torch.bfloat16, torch.float32):
        for heads, width in ((8, 16), (36, 32), (20, 112), (60, 128)):
            x = torch.empty(2, 1024, heads, width, dtype=dtype, device="meta")
            weight = x.new_empty(heads * width)
            table = torch.empty(1024, width // 2, device="meta")
            for cos in (None, table):
                if not every and (
                    (cos is None and width != 32) or (dtype.itemsize > 2 and heads < 60)
                ):
                    continue
                name = f"{str(dtype).removeprefix('torch.')} H={heads} D={width}"
                name += "" if cos is None else " rope"
                yield name, partial(launch.forward, x, weight, cos, cos, 1e-5)
                yield name, partial(launch.backward, x, x, weight, cos, cos, 1e-5)
