"""One case: its numbers against fp64, then its time as a share of what memory allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sana_like_kernels.bench.cases import Case, Passes
from sana_like_kernels.bench.timing import Effort, Timing, time_call
from sana_like_kernels.dispatch import Backend
from sana_like_kernels.testing import relative_rms

# Largest relative RMS against fp64.
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 5e-3, torch.float16: 5e-3}
COPIED = 2**30


@dataclass(frozen=True)
class Bandwidth:
    """Bytes a second of a device's memory, and how that is known."""

    bytes_per_second: float
    source: str


@dataclass(frozen=True)
class Row:
    """What was measured of one case; `timing` and `plain` are `None` where numbers were wrong.

    Args:
        op, label, dtype: the case.
        passes: `forward`, or `both` for forward and backward.
        backend: what was timed.
        error: largest relative RMS of a result or gradient against fp64; NaN if unknown.
        limit: largest that is right.
        bytes: least that must be moved.
        timing: of `backend`.
        plain: of plain PyTorch, not compiled.
        bound: bytes over bandwidth, as a share of the time.
        target: share that is aimed at, or `None`.
        refused: why there is no time, or nothing.
    """

    op: str
    label: str
    dtype: str
    passes: str
    backend: str
    error: float
    limit: float
    bytes: int
    timing: Timing | None = None
    plain: Timing | None = None
    bound: float | None = None
    target: float | None = None
    refused: str = ""

    def record(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def bandwidth(device: torch.device, effort: Effort | None = None, size: int = COPIED) -> Bandwidth:
    """That of the memory by its clock and width, or of a copy of `size` bytes if unknown."""
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        clock = getattr(facts, "memory_clock_rate", 0)  # kHz
        width = getattr(facts, "memory_bus_width", 0)  # bits
        if clock and width:
            # Two transfers a cycle.
            return Bandwidth(2 * clock * 1e3 * width / 8, "memory clock and width")
    return copy_bandwidth(device, effort, size)


def copy_bandwidth(
    device: torch.device, effort: Effort | None = None, size: int = COPIED
) -> Bandwidth:
    """Reading and writing of a copy of `size` bytes: what can be reached in practice."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    timing = time_call(lambda: target.copy_(source), device, effort)
    return Bandwidth(2 * size / timing.median, f"a copy of {size >> 20} MiB")


def measure_case(
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    memory: Bandwidth,
    *,
    backend: Backend = "triton",
    effort: Effort | None = None,
) -> Iterator[Row]:
    """Rows of one case: forward, and forward and backward. Wrong numbers get no time."""
    both: tuple[Passes, ...] = ("forward", "both")
    for passes in both:
        yield _measure(case, dtype, device, memory, backend, effort, passes)


def _measure(
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    memory: Bandwidth,
    backend: Backend,
    effort: Effort | None,
    passes: Passes,
) -> Row:
    moved = case.forward + (case.backward if passes == "both" else 0)
    name = str(dtype).removeprefix("torch.")
    facts = (case.op, case.label, name, passes, backend)
    tensors = case.draw(dtype, device)
    try:
        error = case_error(case, passes, tensors, backend)
    except torch.OutOfMemoryError:
        reason = "no memory to check the numbers in fp64"
        return Row(*facts, float("nan"), LIMITS[dtype], moved * dtype.itemsize, refused=reason)
    row = (*facts, error, LIMITS[dtype], moved * dtype.itemsize)
    if not error <= LIMITS[dtype]:  # also where it is NaN
        return Row(*row, refused="wrong numbers")
    timing = time_call(case.runner(passes, tensors, backend), device, effort)
    plain = time_call(case.runner(passes, tensors, "torch"), device, effort)
    bound = moved * dtype.itemsize / memory.bytes_per_second / timing.median
    aimed = case.target if passes == "forward" and dtype.itemsize == 2 else None
    return Row(*row, timing, plain, bound, aimed)


def case_error(
    case: Case, passes: Passes, tensors: Sequence[torch.Tensor], backend: Backend
) -> float:
    """Largest relative RMS of results (and gradients, in `both`) against fp64; NaN wins."""
    got = [x.detach() for x in case.runner(passes, tensors, backend)()]
    exact = case.runner(passes, [x.double() for x in tensors], "torch")
    errors = [relative_rms(right.detach(), out) for right, out in zip(exact(), got, strict=True)]
    return float(torch.tensor(errors).max())
