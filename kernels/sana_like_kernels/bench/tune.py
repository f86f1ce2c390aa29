"""Search for launch parameters: from a row of the table to its best neighbour, and on from there.

The result is printed as a row for `tuning.TABLE`; nothing is changed by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from sana_like_kernels import tuning
from sana_like_kernels.bench.cases import (
    Case,
    Passes,
    attention_case,
    feed_forward_case,
    plane_case,
)
from sana_like_kernels.bench.measure import LIMITS, case_error
from sana_like_kernels.bench.timing import Effort, time_call
from sana_like_kernels.dispatch import Backend
from sana_like_kernels.tuning import ANY_WIDTH, Launch

WARPS, STAGES = (1, 16), (1, 4)
# Smallest and largest of each block size; a product of matrices needs 16.
BLOCKS: Mapping[str, tuple[int, int]] = {
    "BLOCK_N": (16, 256),
    "BLOCK_V": (16, 128),
    "BLOCKS": (1, 64),
    "BLOCK_X": (1, 64),
    "BLOCK_C": (16, 256),
    "ROWS": (1, 64),
}
Tried = tuple[Launch, float]
"""A launch, and seconds of the call that it was tried on; infinite where it cannot run."""


@dataclass(frozen=True)
class Found:
    """The best launch of one row.

    Args:
        kernel: its name in the table.
        before, after: the row of the table, and the best that was tried.
        after_seconds, before_seconds: of the call that they were tried on; infinite where the row
            of the table itself cannot run.
        tried: launches that ran and gave right numbers.
        failed: launches that the device refused, or whose numbers were wrong.
    """

    kernel: str
    before: Launch
    after: Launch
    after_seconds: float
    before_seconds: float
    tried: int
    failed: int

    def source(self, where: str) -> str:
        """The row as it is written in the table; `where` is the date and machine."""
        row = self.after
        width = "ANY_WIDTH" if row.width == ANY_WIDTH else row.width
        blocks = ", ".join(f"{name}={value}" for name, value in row.blocks.items())
        launch = f"{width}, {row.itemsize}, {row.num_warps}, {row.num_stages}"
        return f'_row({launch}, measured="{where}", {blocks}),'


def neighbours(row: Launch) -> Iterator[Launch]:
    """Launches that differ from `row` in one parameter, by a factor of two or a stage."""
    for name, value in row.blocks.items():
        if isinstance(value, bool):
            yield replace(row, blocks={**row.blocks, name: not value})
            continue
        low, high = BLOCKS[name]
        for other in (value // 2, value * 2):
            if low <= other <= high:
                yield replace(row, blocks={**row.blocks, name: other})
    for other in (row.num_warps // 2, row.num_warps * 2):
        if WARPS[0] <= other <= WARPS[1]:
            yield replace(row, num_warps=other)
    for other in (row.num_stages - 1, row.num_stages + 1):
        if STAGES[0] <= other <= STAGES[1]:
            yield replace(row, num_stages=other)


def climb(row: Launch, cost: Callable[[Launch], float], enough: Callable[[], bool]) -> list[Tried]:
    """All launches tried, the best first, by going to the best neighbour while there is a better.

    Args:
        row: the start.
        cost: of a launch; infinite where it cannot run.
        enough: whether to stop, asked before each launch but the first.
    """
    tried: list[Tried] = [(row, cost(row))]
    best = None
    while best is not tried[0][0]:
        best = tried[0][0]
        for other in neighbours(best):
            if all(other != known for known, _ in tried):
                if enough():
                    return tried
                tried.append((other, cost(other)))
        tried.sort(key=lambda pair: pair[1])
    return tried


def searches(
    device: torch.device,
    *,
    kernels: Sequence[str] = (),
    backend: Backend = "triton",
    effort: Effort | None = None,
    enough: Callable[[], bool] = lambda: False,
    tiny: bool = False,
) -> Iterator[Found]:
    """The best launch of every row of the table, one after another.

    Args:
        device: where to measure.
        kernels: names in the table; all by default.
        backend: `triton`.
        effort: how long to measure each launch.
        enough: whether to stop; a search that was not begun yields nothing.
        tiny: sizes that run in no time, to try the search itself.

    Raises:
        ValueError: a kernel is not in the table.
    """
    unknown = set(kernels) - set(tuning.TABLE)
    if unknown:
        raise ValueError(f"no kernels {sorted(unknown)}; the table has {', '.join(tuning.TABLE)}")
    for kernel in kernels or tuning.TABLE:
        for row in tuning.TABLE[kernel]:
            if enough():
                return
            yield _search(kernel, row, device, backend, effort, enough, tiny)


def _search(
    kernel: str,
    row: Launch,
    device: torch.device,
    backend: Backend,
    effort: Effort | None,
    enough: Callable[[], bool],
    tiny: bool,
) -> Found:
    case, passes = workload(kernel, row, tiny=tiny)
    dtype = _dtype(kernel, row)
    tensors = case.draw(dtype, device)

    def cost(launch: Launch) -> float:
        with tuning.trial(kernel, row, launch):
            try:
                if not case_error(case, passes, tensors, backend) <= LIMITS[dtype]:
                    return math.inf
                return time_call(case.runner(passes, tensors, backend), device, effort).median
            except Exception:  # what a device says of too large a block has no common class
                return math.inf

    tried = climb(row, cost, enough)
    before = next(seconds for launch, seconds in tried if launch is row)
    failed = sum(math.isinf(seconds) for _, seconds in tried)
    return Found(kernel, row, *tried[0], before, len(tried) - failed, failed)


def workload(kernel: str, row: Launch, *, tiny: bool = False) -> tuple[Case, Passes]:
    """What a row is tried on, and whether `forward` or `both` ways."""
    if kernel.startswith("attention"):
        heads = 1 if tiny else max(1, 2240 // row.width)
        return attention_case(2, 20 if tiny else 4096, heads, row.width), "forward"
    if kernel.startswith("glu"):
        passes: Passes = "both" if kernel == "glu_backward" else "forward"
        return feed_forward_case(2, *((2, 2, 4) if tiny else (64, 64, 11200))), passes
    side = 1 if tiny else math.isqrt(2**26 // row.width)
    return plane_case(side, side, row.width, "relu"), "forward"


def _dtype(kernel: str, row: Launch) -> torch.dtype:
    """bf16, unless narrower rows of the same width are for that."""
    narrower = any(
        other.width == row.width and other.itemsize < row.itemsize for other in tuning.TABLE[kernel]
    )
    return torch.float32 if narrower else torch.bfloat16
