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
    from sana_like_kernels.modulated_norm import launch

    for dtype in (torch.bfloat16, torch.float32):
        for channels in (96, 384, 1152, 2240, 5120):
            for rms in (False, True):
                if not every and (
                    (rms and channels != 2240) or (dtype.itemsize > 2 and channels < 5120)
                ):
                    continue
                x = torch.empty(2, 1024, channels, dtype=dtype, device="meta")
                v = x.new_empty(2, 6, channels)[:, :1]
                name = f"{str(dtype).removeprefix('torch.')} C={channels}"
                name += " rms" if rms else " layer"
                yield name + " gated", partial(launch.forward, x, x, v, v, v, rms, 1e-6)
                yield name + " gated", partial(launch.backward, x, x, x, x, v, v, rms, 1e-6)
                if every or channels == 2240:
                    yield name, partial(launch.forward, x, None, None, v, v, rms, 1e-6)
                    yield name, partial(launch.backward, x, None, x, None, None, v, rms, 1e-6)
