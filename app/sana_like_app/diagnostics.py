"""What this machine has and what is missing, as facts that `doctor` prints."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sana_like.folders import user_cache, user_data
from sana_like.version import __version__
from sana_like_app.devices import choose_device, choose_dtype, has_bf16

if TYPE_CHECKING:
    import torch

# Library, what it gives where it is present, and what happens without it.
OPTIONAL = {
    "triton": "fused kernels on CUDA and ROCm; plain PyTorch computes without",
    "torchao": "quantised computing",
    "tensorboard": "logs of training; extra `train`",
    "torchmetrics": "scores of evaluation; extra `eval`",
}


@dataclass(frozen=True)
class Fact:
    """One line of the report; `ok` is false where something keeps a part from working."""

    subject: str
    statement: str
    ok: bool = True


def installed(library: str) -> bool:
    """Whether `library` could be imported; nothing is imported to find out."""
    return importlib.util.find_spec(library) is not None


def accelerations_off(device: torch.device) -> str:
    """One line naming what could be faster and why it is off; empty where nothing is."""
    off = []
    if device.type == "cpu":
        off.append("GPU (the device is the CPU)")
    if not installed("triton"):
        off.append("triton (not installed)")
    elif device.type == "cuda":
        off.extend(f"triton ({why})" for why in _reasons(device.type, "torch"))
    if not installed("torchao"):
        off.append("torchao (not installed)")
    return ", ".join(off)


def report() -> list[Fact]:
    """Everything `doctor` says, in order. Loads torch but no model."""
    return [
        *_software(), *_devices(), *_kernels(), *_speed(), *_libraries(), *_folders(), *_models()
    ]  # fmt: skip


def _software() -> list[Fact]:
    import torch

    build = torch.version.cuda and f"CUDA {torch.version.cuda}"
    build = build or (torch.version.hip and f"ROCm {torch.version.hip}") or "CPU only"
    facts = [
        Fact("sana-like", __version__),
        Fact("python", f"{platform.python_version()} on {platform.platform()}"),
        Fact("torch", f"{torch.__version__} ({build}), {torch.get_num_threads()} threads"),
    ]
    for library in ("diffusers", "transformers", "safetensors"):
        facts.append(Fact(library, importlib.metadata.version(library)))
    return facts


def _devices() -> list[Fact]:
    import torch

    facts = [Fact("cpu", f"{os.cpu_count()} cores, {_memory()}; fp32 and bf16")]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        formats = "fp32, fp16" + (", bf16" if has_bf16(torch.device("cuda", index)) else "")
        facts.append(
            Fact(
                f"cuda:{index}",
                f"{properties.name}, compute {properties.major}.{properties.minor}, "
                f"{properties.total_memory / 2**30:.0f} GiB; {formats}",
            )
        )
    if torch.backends.mps.is_available():
        facts.append(Fact("mps", "Apple Metal; fp32, fp16, bf16"))
    device = choose_device("auto")
    dtype = str(choose_dtype("auto", device)).removeprefix("torch.")
    return [*facts, Fact("auto means", f"--device {device} --dtype {dtype}")]


def _kernels() -> list[Fact]:
    """What computes the fused operators, and why."""
    kind = choose_device("auto").type
    return [
        Fact("operators", f"{backend} ({why}): {', '.join(names)}")
        for backend in ("triton", "torch")
        for why, names in _reasons(kind, backend).items()
    ]


def _reasons(device_type: str, backend: str) -> dict[str, list[str]]:
    """Names of the operators that `backend` computes, by reason."""
    import sana_like_kernels

    found: dict[str, list[str]] = {}
    for status in sana_like_kernels.report(device_type):
        if status.backend == backend:
            found.setdefault(status.reason, []).append(status.op)
    return found


def _speed() -> list[Fact]:
    """Attention backends and ways of quantising that act on the device that `auto` means."""
    from sana_like.attention.backends import BACKENDS, unusable_backends
    from sana_like.weights.quantize import SCHEMES, unusable

    device = choose_device("auto")
    parts = (
        ("attention", "--attention-backend", BACKENDS, unusable_backends(device)),
        ("quantise", "--quantize", SCHEMES, unusable(device)),
    )
    facts = []
    for subject, option, names, reasons in parts:
        legal = ", ".join(name for name in names if name not in reasons)
        by_reason: dict[str, list[str]] = {}
        for name, why in reasons.items():
            by_reason.setdefault(why, []).append(name)
        off = "".join(f"; off: {', '.join(off)} ({why})" for why, off in by_reason.items())
        facts.append(Fact(subject, f"{option} {legal}{off}"))
    return facts


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return "memory unknown"
    return f"{total / 2**30:.1f} GiB memory"


def _libraries() -> list[Fact]:
    device = choose_device("auto")
    facts = [Fact("off", accelerations_off(device) or "nothing")]
    for library, purpose in OPTIONAL.items():
        state = importlib.metadata.version(library) if installed(library) else "not installed"
        facts.append(Fact(library, f"{state} ({purpose})"))
    return facts


def _folders() -> list[Fact]:
    from huggingface_hub import constants

    folders = {
        "cache folder": user_cache(),
        "data folder": user_data(),
        "hub cache": Path(constants.HF_HUB_CACHE),
    }
    return [Fact(name, f"{path} ({_state(path)})") for name, path in folders.items()]


def _state(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    access = "can be written" if os.access(existing, os.W_OK) else "read-only: kept in memory"
    return access if existing == folder else f"not made yet, {access}"


def _models() -> list[Fact]:
    from sana_like.weights.hub import embedded_names
    from sana_like.zoo.fetch import is_fetched

    names, fetched = embedded_names(), is_fetched()
    encoder = "there" if fetched else "missing; run `sana-like zoo fetch` once"
    return [
        Fact("embedded models", ", ".join(names) or "none", ok=bool(names)),
        Fact("text encoder", encoder, ok=fetched),
        Fact("interpreter", sys.executable),
    ]


def try_picture() -> Fact:
    """Make one small picture with the embedded model, in memory, and look at its values."""
    import numpy as np

    from sana_like_app.generation import Studio
    from sana_like_app.setup import Placement, Setup

    began = time.perf_counter()
    try:
        studio = Studio(Setup(pipeline="SanaPipeline", model="emoji"), Placement.choose())
        memory = studio.estimate({}).peak / 2**30
        (made,) = studio.make(["a red apple, 3d"], [1], {"num_inference_steps": 4})
    except (ValueError, RuntimeError, ArithmeticError, OSError, MemoryError) as error:
        return Fact("test picture", f"failed: {' '.join(str(error).split())}", ok=False)
    spread = int(np.ptp(np.asarray(made.picture)))
    seconds = time.perf_counter() - began
    width, height = made.picture.size
    statement = (
        f"{width}x{height} in {seconds:.1f} s with loading, about {memory:.1f} GiB, values spread "
        f"over {spread} of 255"
    )
    return Fact("test picture", statement, ok=spread > 32)
