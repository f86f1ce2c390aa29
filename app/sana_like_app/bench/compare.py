"""Ours against diffusers in one process, A-B-B-A, and no time where numbers are wrong."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from sana_like_app.bench.memory import watching
from sana_like_app.bench.works import Work, compiled

# How much more than diffusers' own a rounding error in half precision may be.
FARTHER = 1.2
# Library calls that multiply matrices or convolve; their own time, without what they call.
PRODUCTS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::mkldnn_convolution",
    "aten::cudnn_convolution",
    "aten::miopen_convolution",
    "aten::_slow_conv2d_forward",
    "aten::thnn_conv2d",
    "aten::_conv_depthwise2d",
    "mkldnn::_linear_pointwise",
)


@dataclass
class Row:
    """What was measured of one work in one dtype. Times in seconds, memory in bytes.

    Attributes:
        work, dtype: which.
        error, limit: relative RMS of our result, to diffusers' in fp32, and what is allowed.
        their_error: of diffusers itself; 0 in fp32, where it is the reference.
        ours, theirs: medians; `None` where numbers were wrong.
        ours_compiled, theirs_compiled: the same under `torch.compile`, where asked for.
        compile_seconds: of the first compiled call, by side.
        products: share of our time that is matrix products and convolutions.
        our_peak, their_peak: highest memory, where the system tells.
        target: times faster that are aimed at.
        refused: why there are no times.
    """

    work: str
    dtype: str
    error: float
    limit: float
    their_error: float = 0.0
    ours: float | None = None
    theirs: float | None = None
    ours_compiled: float | None = None
    theirs_compiled: float | None = None
    compile_seconds: dict[str, float] = field(default_factory=dict)
    products: float | None = None
    our_peak: int | None = None
    their_peak: int | None = None
    target: float | None = None
    refused: str = ""
    runs: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """How many times faster than diffusers."""
        return None if self.ours is None or self.theirs is None else self.theirs / self.ours

    @property
    def compiled_ratio(self) -> float | None:
        """How many times faster than diffusers compiled."""
        if self.ours is None or self.theirs_compiled is None:
            return None
        return self.theirs_compiled / self.ours

    def record(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self) | {"ratio": self.ratio, "compiled_ratio": self.compiled_ratio}


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        dtypes: one row each.
        device: where.
        repeats: runs in each of the two visits.
        compiled: whether both are measured under the compiler too.
        around: entered around each visit, to keep other work off the machine.
    """

    dtypes: Sequence[torch.dtype]
    device: torch.device
    repeats: int = 1
    compiled: bool = False
    around: Callable[[], AbstractContextManager[Any]] = nullcontext


@torch.no_grad()
def compare(work: Work, plan: Plan) -> Iterator[Row]:
    """Rows of one work, in the order of `plan.dtypes`, fp32 first."""
    work.cast(torch.float32)
    exact = work.give_theirs()
    for dtype in sorted(plan.dtypes, key=lambda dtype: -dtype.itemsize):
        work.cast(dtype)
        row = _checked(work, dtype, exact)
        if not row.refused:
            _measure(work, plan, row)
        yield row


def relative_rms(out: Tensor, exact: Tensor) -> float:
    """`|out - exact| / |exact|`; NaN stays NaN."""
    out, exact = out.float(), exact.float()
    return float((out - exact).norm() / exact.norm())


def _checked(work: Work, dtype: torch.dtype, exact: Tensor) -> Row:
    """A row without times; these calls warm both sides up as well."""
    name = str(dtype).removeprefix("torch.")
    error, limit, theirs = relative_rms(work.give_ours(), exact), work.limit, 0.0
    if dtype != torch.float32:
        theirs = relative_rms(work.give_theirs(), exact)
        limit = FARTHER * theirs
    row = Row(work.name, name, error, limit, theirs, target=work.targets.get(name))
    if not error <= limit:  # also where it is NaN
        row.refused = f"wrong numbers: {error:.2g} is over {limit:.2g}"
    return row


def _measure(work: Work, plan: Plan, row: Row) -> None:
    calls: dict[str, Callable[[], Tensor]] = {"theirs": work.give_theirs, "ours": work.give_ours}
    if plan.compiled:
        calls |= _compiled(work, row)
    names = list(calls)
    for name in [*names, *reversed(names)]:
        with plan.around(), watching(plan.device) as peak:
            row.runs.setdefault(name, []).extend(
                seconds(calls[name], plan.device) for _ in range(plan.repeats)
            )
        side = {"ours": "our_peak", "theirs": "their_peak"}.get(name)
        if side is not None and peak.total is not None:
            setattr(row, side, max(getattr(row, side) or 0, peak.total))
    with plan.around():
        row.products = products_share(work.give_ours, plan.device)
    for name, runs in row.runs.items():
        setattr(row, name, statistics.median(runs))


def _compiled(work: Work, row: Row) -> dict[str, Callable[[], Tensor]]:
    """Both sides under the compiler, after their first calls."""
    theirs, ours = compiled(work.theirs), compiled(work.ours)
    calls = {
        "theirs_compiled": lambda: work.give_theirs(theirs),
        "ours_compiled": lambda: work.give_ours(ours),
    }
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        row.compile_seconds[name] = time.perf_counter() - start
        call()
    return calls


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Of one call, its work on the device included."""
    _wait(device)
    start = time.perf_counter()
    call()
    _wait(device)
    return time.perf_counter() - start


def products_share(call: Callable[[], Any], device: torch.device) -> float:
    """Share of the time of `call` that is spent in matrix products and convolutions."""
    on_gpu = device.type == "cuda"
    # On a processor the older recorder suffices, which does not talk to stderr.
    with torch.autograd.profiler.profile(
        use_device="cuda" if on_gpu else None, use_kineto=on_gpu
    ) as profiler:
        whole = seconds(call, device)
    own = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    spent = sum(getattr(e, own) for e in profiler.key_averages() if e.key in PRODUCTS)
    return float(spent / 1e6 / whole)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
