"""What a GPU is used to: every kernel against its bound, a denoise against diffusers, memory.

    python benchmarks/gpu.py --output results.json           # kernels, then the denoise
    python benchmarks/gpu.py --tune --output rows.json       # search for launch parameters

Numbers are checked first, and where they are wrong there is no time. Prints tables, and as the last
line one JSON object, which is also written to the file. See `benchmarks/README.md`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_denoise
import gpu_paths
import torch

from sana_like_kernels import bench
from sana_like_kernels.dispatch import unavailable

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
# What is aimed at for a denoise: seconds on an H200, and times faster than diffusers.
SECONDS, OVER_EAGER, OVER_COMPILED = 0.30, 1.5, 1.1
TINY_EFFORT = bench.Effort(warm_ups=1, fewest=2, most=2, seconds=0.0)
QUICK_EFFORT = bench.Effort(warm_ups=5, fewest=10, most=50, seconds=0.1)


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="file for the results, JSON")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes that only try the script")
    parser.add_argument("--minutes", type=float, default=12.0, help="begin nothing after these")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="of kernels; default bf16")
    parser.add_argument("--kernel", default="", help="only ops whose name contains this")
    parser.add_argument(
        "--part", choices=("kernels", "denoise"), action="append", help="default: both"
    )
    parser.add_argument("--tune", action="store_true", help="search for launch parameters instead")
    parser.add_argument("--compiler", default="inductor", help="backend of torch.compile")
    return parser.parse_args(given)


class Benchmark:
    """One run: the device, the clock, and what has been found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.end = time.monotonic() + 60 * options.minutes
        obstacle = unavailable(self.device.type)
        if obstacle is not None and self.device.type == "cuda":
            raise SystemExit(f"the kernels cannot run: {obstacle}")
        self.backend: Any = "torch" if obstacle is not None else "triton"
        self.effort = TINY_EFFORT if options.tiny else None
        self.found: dict[str, Any] = {"machine": machine(self.device), "wrong": []}

    def enough(self) -> bool:
        """Whether nothing more is to be begun."""
        return time.monotonic() > self.end

    def run(self) -> dict[str, Any]:
        """Everything that was asked for, within the time."""
        parts = self.options.part or ("kernels", "denoise")
        with reported(self.found):
            if self.options.tune:
                self.tune()
                return self.found
            if "kernels" in parts:
                self.kernels()
            if "denoise" in parts:
                self.denoise()
            self.targets()
        return self.found

    def targets(self) -> None:
        """What was aimed at, and whether it was reached."""
        rows = [row for row in self.found.get("kernels", ()) if row["target"] and row["bound"]]
        aims = [
            (f"{row['op']} {row['label']}, share of bound", row["bound"], row["target"])
            for row in rows
        ]
        seconds = {row["name"]: row["seconds"] for row in self.found.get("denoise", ())}
        own = [value for name, value in seconds.items() if name.startswith("sana_like") and value]
        if own:
            best = min(own)
            aims.append((f"denoises in {SECONDS} s", SECONDS / best, 1.0))
            for name, wanted in (("diffusers", OVER_EAGER), ("diffusers compiled", OVER_COMPILED)):
                if seconds.get(name):
                    aims.append((f"times faster than {name}", seconds[name] / best, wanted))
        self.found["targets"] = [
            {"aim": aim, "wanted": wanted, "reached": reached} for aim, reached, wanted in aims
        ]
        show("")
        for aim, reached, wanted in aims:
            mark = "reached" if reached >= wanted else "missed"
            show(f"{mark:8} {reached:6.2f} of {wanted:5.2f}  {aim}")

    def kernels(self) -> None:
        """Every op against its bound."""
        size = 2**20 if self.options.tiny else 2**30
        memory = bench.bandwidth(self.device, self.effort, size)
        copy = bench.copy_bandwidth(self.device, self.effort, size)
        self.found["bandwidth"] = {
            "bytes_per_second": memory.bytes_per_second,
            "source": memory.source,
            "copy_bytes_per_second": copy.bytes_per_second,
        }
        show(
            f"memory: {memory.bytes_per_second / 1e12:.2f} TB/s by {memory.source}, "
            f"{copy.bytes_per_second / 1e12:.2f} TB/s in {copy.source}\n"
        )
        show(
            f"{'op':20}{'size':34}{'dtype':9}{'passes':8}{'us':>9}{'%':>6}{'plain us':>10}{'x':>6}"
        )
        rows = self.found["kernels"] = []
        for dtype in self.options.dtype or ("bfloat16",):
            for case in bench.cases(tiny=self.options.tiny):
                if self.options.kernel not in case.op:
                    continue
                if self.enough():
                    self.found.setdefault("not_begun", []).append(f"{case.op} {case.label} {dtype}")
                    continue
                for row in bench.measure_case(
                    case,
                    DTYPES[dtype],
                    self.device,
                    memory,
                    backend=self.backend,
                    effort=self.effort,
                ):
                    rows.append(row.record())
                    self.show_row(row)

    def show_row(self, row: bench.Row) -> None:
        """One line of the table of kernels."""
        start = f"{row.op:20}{row.label:34}{row.dtype:9}{row.passes:8}"
        if row.timing is None or row.plain is None or row.bound is None:
            self.found["wrong"].append(f"{row.op} {row.label} {row.dtype}: {row.refused}")
            show(f"{start}refused: {row.refused}, relative RMS {row.error:.1e}")
            return
        notes = "" if row.timing.captured or self.device.type == "cpu" else "  launched one by one"
        show(
            f"{start}{1e6 * row.timing.median:>9.1f}{100 * row.bound:>6.1f}"
            f"{1e6 * row.plain.median:>10.1f}{row.plain.median / row.timing.median:>6.2f}{notes}"
        )

    def denoise(self) -> None:
        """A whole denoise against diffusers."""
        if self.enough():
            self.found.setdefault("not_begun", []).append("denoise")
            return
        variants = gpu_denoise.compare(
            self.device,
            tiny=self.options.tiny,
            compiler=self.options.compiler,
            enough=self.enough,
        )
        seconds = {variant.name: variant.seconds for variant in variants}
        show(f"\n{'denoise':22}{'s':>9}{'first s':>9}{'MiB':>8}{'x eager':>9}{'x compiled':>12}")
        for variant in variants:
            if variant.seconds is None:
                self.found["wrong"].append(f"{variant.name}: {variant.refused}")
                show(f"{variant.name:22}refused: {variant.refused}")
                continue
            ratios = [
                ratio(seconds[name], variant.seconds)
                for name in ("diffusers", "diffusers compiled")
            ]
            show(
                f"{variant.name:22}{variant.seconds:>9.4f}{variant.first:>9.2f}"
                f"{variant.peak / 2**20:>8.0f}{ratios[0]:>9}{ratios[1]:>12}"
            )
        self.found["denoise"] = [variant.record() for variant in variants]

    def tune(self) -> None:
        """Rows for the table of launch parameters."""
        facts = self.found["machine"]
        where = f"{facts['date']}: {facts['device']}, triton {facts['triton']}"
        rows = self.found["rows"] = []
        kernels = [self.options.kernel] if self.options.kernel else []
        effort = self.effort or QUICK_EFFORT
        for found in bench.searches(
            self.device,
            kernels=kernels,
            backend=self.backend,
            effort=effort,
            enough=self.enough,
            tiny=self.options.tiny,
        ):
            better = math.isfinite(found.after_seconds)
            rows.append({"kernel": found.kernel, "row": found.source(where), "runs": better})
            show(
                f"{found.kernel}: {found.source(where) if better else 'nothing ran'}\n"
                f"    {1e6 * found.before_seconds:.1f} us before, "
                f"{1e6 * found.after_seconds:.1f} us after; {found.tried} tried, "
                f"{found.failed} could not run"
            )


@contextmanager
def reported(found: dict[str, Any]) -> Iterator[None]:
    """What was measured before an error is not lost to it."""
    try:
        yield
    except Exception as error:
        found["wrong"].append(f"{type(error).__name__}: {error}")
        show(f"stopped: {type(error).__name__}: {error}")


def finite(value: Any) -> Any:
    """The same with nothing in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def ratio(reference: float | None, seconds: float) -> str:
    """How many times faster, or that it is unknown."""
    return "-" if reference is None else f"{reference / seconds:.2f}"


def show(line: str) -> None:
    """A line for people, at once: a machine that is taken away has still shown it."""
    print(line, flush=True)


def machine(device: torch.device) -> dict[str, Any]:
    """Where and with what this was measured."""
    facts: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "commit": output_of("git", "-C", str(gpu_paths.ROOT), "rev-parse", "--short", "HEAD"),
    }
    for name in ("triton", "diffusers"):
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = None
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
        fields = "driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
        facts["nvidia_smi"] = output_of("nvidia-smi", f"--query-gpu={fields}", "--format=csv")
    return facts


def output_of(program: str, *rest: str) -> str | None:
    """What a program prints, or nothing where it is missing or fails."""
    path = shutil.which(program)
    if path is None:
        return None
    done = subprocess.run([path, *rest], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.strip() if done.returncode == 0 else None


def main(given: Sequence[str] | None = None) -> int:
    """Run; the exit status is 1 where numbers were wrong or a part failed."""
    options = arguments(given)
    found = Benchmark(options).run()
    text = json.dumps(finite(found))
    if options.output is not None:
        partial = options.output.with_name(options.output.name + ".part")
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(options.output)
    show(text)
    return int(bool(found["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
