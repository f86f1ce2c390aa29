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
    from sana_like_kernels.glu_mbconv import launch

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        # SANA 1.6B, and a small model whose channels no vector width divides.
        for grid, channels in ((32, 11200), (17, 300)):
            for fused in (False, True):
                if not every and (dtype is torch.float16 or (dtype is torch.float32 and not fused)):
                    continue
                hidden = torch.empty(2, grid, grid, channels, dtype=dtype, device="meta")
                weight = hidden.new_empty(channels, 1, 3, 3)
                bias = hidden.new_empty(channels)
                expand = bias if fused else None
                name = f"{str(dtype).removeprefix('torch.')} {grid}x{grid}x{channels}"
                name += " expand_bias" if fused else ""
                yield name, partial(launch.forward, hidden, weight, bias, expand)
                grad = hidden[..., : channels // 2].contiguous()
                yield name, partial(launch.backward, grad, hidden, weight, bias, expand)
