"""How much memory a device has left, and whether an estimate fits into it."""

from __future__ import annotations

from pathlib import Path

import torch

# Estimates are within a third of what a call takes; so much of the free memory may be planned for.
SAFE_SHARE = 0.75
_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that a new tensor on `device` could take at present; `None` where nothing tells.

    On a CPU what the kernel calls available, or less where the process group is limited; on an
    accelerator with what PyTorch holds in reserve.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    if device.type == "cpu":
        known = [size for size in (_available(), _left_of_group()) if size is not None]
        return min(known, default=None)
    return None


def fits(needed: int, device: torch.device) -> bool:
    """Whether an estimate of `needed` bytes fits the free memory; true where that is unknown."""
    free = free_bytes(device)
    return free is None or needed <= SAFE_SHARE * free


def _available() -> int | None:
    """`MemAvailable` of Linux in bytes."""
    for line in _lines(_MEMINFO):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_of_group() -> int | None:
    """What is left of the limit of a control group (containers); files it caches can be dropped."""
    limit, used = _lines(_GROUP / "memory.max"), _lines(_GROUP / "memory.current")
    if not limit or not used or not limit[0].isdecimal():
        return None
    cached = [
        int(line.split()[1])
        for line in _lines(_GROUP / "memory.stat")
        if line.startswith("inactive_file ")
    ]
    return int(limit[0]) - int(used[0]) + sum(cached)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("ascii").splitlines()
    except OSError:
        return []
