"""The most memory that a piece of work takes."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Bytes at the highest point; `None` where this system does not tell."""

    total: int | None = None


@contextmanager
def watching(device: torch.device) -> Iterator[Peak]:
    """Watch the memory of `device` inside the block; `.total` is set at its end.

    On CUDA it is what torch has allocated. On Linux it is the resident memory of the process,
    weights and libraries included, after memory that is free but not given back was given back.
    """
    import torch

    peak = Peak()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    elif resettable():
        ctypes.CDLL(None).malloc_trim(0)
        RESET.write_text("5", encoding="ascii")
    yield peak
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        peak.total = torch.cuda.max_memory_allocated(device)
    elif resettable():
        peak.total = _high_water()


def resettable() -> bool:
    """Whether the process's peak can be read and begun anew."""
    return sys.platform == "linux" and RESET.exists() and hasattr(ctypes.CDLL(None), "malloc_trim")


def _high_water() -> int:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{STATUS} tells no peak")
