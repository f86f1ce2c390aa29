"""Launch parameters of every kernel: one frozen table, each row with the date of its measurement.

A row holds for widths up to its own (the head width of attention, the channels of a norm) and for
elements up to its own number of bytes. Rows that no GPU has measured yet say so: they compile
without spills and within shared memory for every architecture of
`python -m sana_like_kernels.inspect`, and are small rather than fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import torch

UNMEASURED = "2026-11: compiled only, not measured on a GPU"
ANY_WIDTH = 2**31


@dataclass(frozen=True)
class Launch:
    """Parameters of one kernel.

    Args:
        width: largest head width or number of channels that the row is for.
        itemsize: most bytes of an element that the row is for.
        blocks: names and values of the kernel's block sizes.
        num_warps, num_stages: Triton's launch options.
        measured: date and machine.
    """

    width: int
    itemsize: int
    blocks: Mapping[str, int]
    num_warps: int
    num_stages: int = 1
    measured: str = UNMEASURED


def _row(
    width: int,
    itemsize: int,
    warps: int,
    stages: int = 1,
    measured: str = UNMEASURED,
    **blocks: int,
) -> Launch:
    return Launch(width, itemsize, MappingProxyType(blocks), warps, stages, measured)


# Of each kernel, from narrow to wide: the first row that is wide enough holds.
TABLE: Mapping[str, tuple[Launch, ...]] = MappingProxyType(
    {
        "attention_sums": (
            _row(32, 2, 4, 1, BLOCK_N=16, BLOCK_V=32),
            _row(32, 4, 4, 1, BLOCK_N=16, BLOCK_V=32),
            _row(64, 2, 8, 1, BLOCK_N=16, BLOCK_V=64),
            _row(64, 4, 8, 1, BLOCK_N=16, BLOCK_V=64),
            _row(128, 2, 8, 1, BLOCK_N=32, BLOCK_V=64),
            _row(128, 4, 8, 1, BLOCK_N=16, BLOCK_V=64),
        ),
        # KEEP holds the D x D sums on the chip from block to block; in fp32 two halves of each
        # number are held, which is too much for the widest heads.
        "attention_tokens": (
            _row(32, 2, 4, BLOCK_N=64, BLOCKS=4, KEEP=True),
            _row(32, 4, 4, BLOCK_N=32, BLOCKS=8, KEEP=True),
            _row(64, 2, 8, BLOCK_N=64, BLOCKS=4, KEEP=True),
            _row(64, 4, 8, BLOCK_N=16, BLOCKS=16, KEEP=True),
            _row(128, 2, 8, 2, BLOCK_N=16, BLOCKS=16, KEEP=True),
            _row(128, 4, 8, BLOCK_N=16, BLOCKS=16, KEEP=False),
        ),
        "glu_gate": (_row(ANY_WIDTH, 4, 4, BLOCK_X=8, BLOCK_C=64, ROWS=8),),
        "glu_backward": (
            _row(ANY_WIDTH, 2, 4, BLOCK_X=8, BLOCK_C=64, ROWS=16),
            _row(ANY_WIDTH, 4, 8, BLOCK_X=8, BLOCK_C=64, ROWS=16),
        ),
        # Whole tokens: the width is that of all their channels.
        "row": (
            _row(128, 4, 4, ROWS=16),
            _row(256, 4, 4, ROWS=8),
            _row(512, 4, 4, ROWS=4),
            _row(1024, 4, 4, ROWS=2),
            _row(2048, 4, 4, ROWS=1),
            _row(4096, 4, 8, ROWS=1),
            _row(8192, 4, 16, ROWS=1),
        ),
    }
)


_trials: dict[tuple[str, int, int], Launch] = {}


@contextmanager
def trial(kernel: str, row: Launch, instead: Launch) -> Iterator[None]:
    """Inside, in the whole process, `instead` holds where `row` of `kernel` would."""
    key = (kernel, row.width, row.itemsize)
    _trials[key] = instead
    try:
        yield
    finally:
        del _trials[key]


def parameters(kernel: str, width: int, dtype: torch.dtype) -> Launch:
    """The row of `kernel` for `width` and `dtype`.

    Raises:
        ValueError: no row is wide enough; callers check their limit before they launch.
    """
    for row in TABLE[kernel]:
        if width <= row.width and dtype.itemsize <= row.itemsize:
            return _trials.get((kernel, row.width, row.itemsize), row)
    raise ValueError(f"no launch parameters of {kernel} for width {width} and {dtype}")


def options(kernel: str, width: int, dtype: torch.dtype) -> dict[str, int]:
    """Block sizes and launch options of `kernel` as keyword arguments of a launch."""
    row = parameters(kernel, width, dtype)
    return {**row.blocks, "num_warps": row.num_warps, "num_stages": row.num_stages}
