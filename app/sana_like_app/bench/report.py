"""Tables for people, and the machine that they belong to."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sana_like_app.bench.compare import Row


def machine(device: Any) -> dict[str, Any]:
    """What the numbers depend on."""
    import diffusers
    import torch

    facts: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "system": platform.platform(),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "device": str(device),
    }
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
    return facts


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def print_rows(rows: Sequence[Row], facts: dict[str, Any]) -> None:
    """The table on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="diffusers against sana_like, same weights, A-B-B-A")
    columns = ["work", "dtype", "diffusers s", "ours s", "faster", "aim"]
    if any(row.theirs_compiled for row in rows):
        columns += ["diffusers compiled s", "ours compiled s"]
    for name in [*columns, "products", "peak MB theirs", "peak MB ours", "error"]:
        table.add_column(name, justify="left" if name in {"work", "dtype"} else "right")
    for row in rows:
        end = row.refused or f"{row.error:.1e}"
        compiled = [_number(x, "{:.3f}") for x in (row.theirs_compiled, row.ours_compiled)]
        compiled = compiled if "ours compiled s" in columns else []
        table.add_row(
            row.work,
            row.dtype,
            _number(row.theirs, "{:.3f}"),
            _number(row.ours, "{:.3f}"),
            _number(row.ratio, "{:.2f}x"),
            _number(row.target, "{:.1f}x"),
            *compiled,
            _number(row.products, "{:.0%}"),
            _number(row.their_peak, "{:.0f}", 2**-20),
            _number(row.our_peak, "{:.0f}", 2**-20),
            end,
        )
    console = Console(width=None if Console().is_terminal else 170)
    console.print(table)
    console.print(", ".join(f"{name} {value}" for name, value in facts.items()))


def _number(value: float | None, form: str, scale: float = 1) -> str:
    return "" if value is None else form.format(value * scale)
