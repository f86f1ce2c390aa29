"""Which device and number format a run uses, checked before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DEVICES = "auto, cpu, cuda, cuda:N (ROCm too), mps"
DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
}
OFFLOADS = ("none", "model", "sequential", "group")


class DeviceError(ValueError):
    """The machine cannot do what was asked of it."""


def choose_device(name: str = "auto") -> torch.device:
    """The device called `name`; `auto` takes CUDA or ROCm, then MPS, then the CPU.

    Raises:
        DeviceError: no such name, or this torch sees no such device.
    """
    import torch

    kind, _, index = name.partition(":")
    if kind not in {"auto", "cpu", "cuda", "mps"} or (index and kind != "cuda"):
        raise DeviceError(f"unknown device {name!r}; legal are {DEVICES}")
    if index and not index.isdecimal():
        raise DeviceError(f"device {name!r} has no number after the colon; write e.g. cuda:0")
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if kind == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps else "cpu")
    if kind == "cuda" and not has_cuda:
        raise DeviceError(_absent(name, "CUDA or ROCm"))
    if kind == "mps" and not has_mps:
        raise DeviceError(_absent(name, "Apple Metal"))
    if index and int(index) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name!r} does not exist: there are {torch.cuda.device_count()}, counted from 0"
        )
    return torch.device(name)


def _absent(name: str, kind: str) -> str:
    import torch

    return (
        f"device {name!r} was asked for, but torch {torch.__version__} sees no {kind} device; "
        "use --device cpu, or install a torch build made for your accelerator"
    )


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The number format called `name` on `device`.

    `auto` is bf16 on CUDA and ROCm devices that have it and fp32 elsewhere. It is never fp16:
    activations of published SANA weights pass its largest number, 65504.

    Raises:
        DeviceError: no such name, fp16 on a CPU, or bf16 on a GPU without it.
    """
    import torch

    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and has_bf16(device) else torch.float32
    if name not in DTYPES:
        raise DeviceError(f"unknown dtype {name!r}; legal are auto, fp32, bf16, fp16")
    dtype: torch.dtype = getattr(torch, DTYPES[name])
    if dtype is torch.float16 and device.type == "cpu":
        raise DeviceError("fp16 is not for CPUs; use --dtype fp32 or --dtype bf16")
    if dtype is torch.bfloat16 and not has_bf16(device):
        raise DeviceError(f"{device} has no bf16; use --dtype fp32")
    return dtype


def has_bf16(device: torch.device) -> bool:
    """Whether `device` computes in bf16 itself; every supported CPU and MPS can."""
    import torch

    if device.type != "cuda":
        return True
    return torch.cuda.is_bf16_supported(including_emulation=False)


def check_offload(name: str, device: torch.device) -> None:
    """Refuse an offload that is unknown or has nothing to move away from.

    Raises:
        DeviceError: see above.
    """
    if name not in OFFLOADS:
        raise DeviceError(f"unknown offload {name!r}; legal are {', '.join(OFFLOADS)}")
    if name != "none" and device.type == "cpu":
        raise DeviceError(
            f"--offload {name} moves parts from an accelerator to the CPU, and the device is the "
            "CPU already; leave it out"
        )
