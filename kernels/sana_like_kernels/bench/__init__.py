"""How fast the ops are, as a share of what memory allows; only where their numbers are right."""

from __future__ import annotations

from sana_like_kernels.bench.cases import Case, cases
from sana_like_kernels.bench.measure import (
    LIMITS,
    Bandwidth,
    Row,
    bandwidth,
    copy_bandwidth,
    measure_case,
)
from sana_like_kernels.bench.timing import Effort, Timing, time_call
from sana_like_kernels.bench.tune import Found, searches

__all__ = [
    "LIMITS",
    "Bandwidth",
    "Case",
    "Effort",
    "Found",
    "Row",
    "Timing",
    "bandwidth",
    "cases",
    "copy_bandwidth",
    "measure_case",
    "searches",
    "time_call",
]
