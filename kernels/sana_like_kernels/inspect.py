"""Compile every kernel ahead of time, without a GPU: `python -m sana_like_kernels.inspect`.

The ops' own launch code is run on tensors without memory, at the sizes of published models, and
what it would launch is compiled for each architecture. So what is compiled is what would run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sana_like_kernels import dispatch

# Compute capability and the shared memory that one program may have there, in bytes.
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
FOLDERS = ("glu_mbconv", "linear_attention", "modulated_norm", "qk_norm_rope", "rms_norm_2d")
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
}
INT32_LIMIT = 2**31


@dataclass(frozen=True)
class Row:
    """Resources of one kernel on one architecture; bytes, and registers per thread."""

    kernel: str
    case: str
    arch: int
    registers: int
    spills: int
    shared: int
    limit: int
    warps: int
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it compiles, nothing spills to memory and shared memory suffices."""
        return not self.error and self.spills == 0 and self.shared <= self.limit


@dataclass(frozen=True)
class Recorded:
    """One launch: the kernel, the case that made it, and its arguments."""

    kernel: Any
    case: str
    arguments: Mapping[str, Any]


def record(*, every: bool = True) -> list[Recorded]:
    """Every distinct launch of the cases of the ops' `cases` modules.

    Args:
        every: all cases; else without those that differ little from another.
    """
    found: dict[str, Recorded] = {}
    for folder in FOLDERS:
        cases: Callable[..., Iterator[tuple[str, Callable[[], Any]]]]
        cases = importlib.import_module(f"sana_like_kernels.{folder}.cases").cases
        for name, call in cases(every=every):

            def keep(
                kernel: Any, _: tuple[int, ...], arguments: dict[str, Any], name: str = name
            ) -> None:
                signature, constants, attributes = _specialise(kernel, arguments)
                identity = f"{kernel.__name__}{signature}{constants}{attributes}"
                found.setdefault(identity, Recorded(kernel, name, arguments))

            with dispatch.observed(keep):
                call()
    return list(found.values())


def compile_one(launch: Recorded, arch: int) -> Row:
    """Compile one launch for one architecture and read what it takes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = _specialise(launch.kernel, launch.arguments)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    names = [name for name in ("num_warps", "num_stages") if name in launch.arguments]
    options = {name: launch.arguments[name] for name in names} | {"enable_fp_fusion": True}
    row = partial(
        Row,
        launch.kernel.__name__,
        launch.case,
        arch,
        limit=SHARED_LIMIT[arch],
        warps=options["num_warps"],
    )
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    except RuntimeError as error:
        return row(registers=0, spills=0, shared=0, error=str(error))
    registers, spills = _resources(compiled.asm["ptx"], arch)
    return row(registers=registers, spills=spills, shared=compiled.metadata.shared)


def _specialise(
    kernel: Any, arguments: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Types, constants and divisibility of the arguments, as a launch would see them."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        divisible = isinstance(value, Tensor)
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, Tensor):
            signature[parameter.name] = TYPES[value.dtype]
        elif isinstance(value, int):
            signature[parameter.name] = "i32" if abs(value) < INT32_LIMIT else "i64"
            divisible = value % 16 == 0
        else:
            signature[parameter.name] = "fp32"
        if divisible:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _resources(ptx: str, arch: int) -> tuple[int, int]:
    """Registers per thread and spilled bytes, as the assembler reports them."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={sm_arch_from_capability(arch)}"]
        command += [str(source), "-o", str(Path(folder) / "kernel.cubin")]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = sum(int(number) for number in re.findall(r"(\d+) bytes spill", text))
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", text)]
    return max(registers), spills


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit status is 1 if a kernel spills or takes too much shared memory."""
    parser = argparse.ArgumentParser(
        prog="python -m sana_like_kernels.inspect", description=__doc__
    )
    parser.add_argument("--arch", type=int, action="append", choices=sorted(SHARED_LIMIT))
    parser.add_argument("--kernel", default="", help="only kernels whose name contains this")
    parser.add_argument(
        "--fewer", action="store_true", help="without cases that differ little from another"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    chosen = parser.parse_args(arguments)
    if dispatch.interpreted():
        parser.error("TRITON_INTERPRET is set: interpreted kernels cannot be compiled; unset it")
    write = sys.stdout.write
    if not chosen.json:
        write(f"{'kernel':28}{'sm':>4}{'warps':>6}{'regs':>6}{'spill':>6}{'shared':>8}  case\n")
    failed = 0
    for launch in record(every=not chosen.fewer):
        if chosen.kernel not in launch.kernel.__name__:
            continue
        for arch in chosen.arch or sorted(SHARED_LIMIT):
            row = compile_one(launch, arch)
            failed += not row.ok
            if chosen.json:
                write(json.dumps({**asdict(row), "ok": row.ok}) + "\n")
                continue
            write(
                f"{row.kernel:28}{row.arch:>4}{row.warps:>6}{row.registers:>6}{row.spills:>6}"
                f"{row.shared:>8}  {row.case}{'' if row.ok else '  ' + (row.error or 'TOO MUCH')}\n"
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
