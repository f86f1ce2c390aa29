"""Which implementation of an op acts, Triton or plain PyTorch, and how Triton kernels are launched.

Each op has one public function. On CUDA and ROCm it runs Triton kernels, where Triton is installed
and the op's kernels know the dtype and the size; elsewhere it runs plain PyTorch, which the
compiler can fuse. Both can be asked for: `backend="triton"` or `backend="torch"` as an argument,
or `use_backend` around a piece of code. What was asked for and cannot act is an error.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Backend = Literal["auto", "triton", "torch"]
BACKENDS = ("auto", "triton", "torch")
# Older NVIDIA chips have neither bfloat16 nor tf32 matrix units.
OLDEST_NVIDIA = (8, 0)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Read by compiled code, whose guards understand a module global but no context variable.
_forced: Backend = "auto"
Observer = Callable[[Any, tuple[int, ...], dict[str, Any]], None]
_observer: ContextVar[Observer | None] = ContextVar("launch observer", default=None)


@dataclass(frozen=True)
class OpStatus:
    """What acts for one op on one kind of device, and why."""

    op: str
    backend: str
    reason: str


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Choose the implementation of every op inside the block, for the whole process.

    Args:
        backend: `triton`, `torch` or `auto`. An op's own argument wins over it.

    Raises:
        ValueError: another name. Calls inside raise it where `triton` cannot act.
    """
    global _forced  # noqa: PLW0603
    _check(backend)
    before, _forced = _forced, backend
    try:
        yield
    finally:
        _forced = before


def use_triton(
    op: str, backend: Backend | None, device: torch.device, obstacle: str | None
) -> bool:
    """Whether `op` runs its Triton kernels for tensors on `device`.

    Args:
        op: name for the message.
        backend: the argument of the call; `None` takes that of `use_backend`.
        device: of the tensors.
        obstacle: what in this call the kernels cannot do, e.g. its dtype; `None` if nothing.

    Raises:
        ValueError: an unknown backend, or `triton` was asked for and cannot act.
    """
    wanted = _forced if backend is None else backend
    _check(wanted)
    # On a CPU kernels only run under Triton's interpreter, which is for tests: never by itself.
    if wanted == "torch" or (wanted == "auto" and device.type != "cuda"):
        return False
    why_not = obstacle or unavailable(device.type)
    if why_not is not None and wanted == "triton":
        raise ValueError(
            f"{op} cannot run its Triton kernels: {why_not}; use backend 'torch' or 'auto'"
        )
    return why_not is None


def unsupported_dtype(*tensors: Tensor) -> str | None:
    """An obstacle for `use_triton` if the kernels do not know the dtype of one of `tensors`."""
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            return f"{tensor.dtype} is not one of float32, float16, bfloat16"
    return None


@torch.compiler.assume_constant_result
def unavailable(device_type: str) -> str | None:
    """Why Triton kernels cannot run on this kind of device; `None` where they can."""
    return _probe(device_type)


def report(device_type: str | None = None) -> list[OpStatus]:
    """What acts for every op, for tensors of the dtypes that the kernels know.

    Args:
        device_type: e.g. `cuda`; `None` takes `cuda` where there is one, else `cpu`.
    """
    kind = device_type or ("cuda" if torch.cuda.is_available() else "cpu")
    why_not = _probe(kind)
    if _forced != "auto":
        backend, reason = _forced, "chosen by use_backend"
    elif kind == "cpu":
        backend, reason = "torch", "plain PyTorch is the fast path of a CPU"
    elif why_not is not None:
        backend, reason = "torch", why_not
    else:
        backend, reason = "triton", f"triton {_triton_version()} on {kind}"
    return [OpStatus(op, backend, reason) for op in OPS]


OPS = (
    "glu_mbconv",
    "linear_attention",
    "block_causal_linear_attention",
    "modulated_norm",
    "gated_residual_norm",
    "qk_norm_rope",
    "rms_norm_2d",
)


def launch(kernel: Any, grid: tuple[int, ...], **arguments: Any) -> None:
    """Run `kernel` on `grid`, or hand it to the observer of `observed`."""
    observer = _observer.get()
    if observer is not None:
        observer(kernel, grid, arguments)
        return
    # Triton launches on the current device, which need not be that of the tensors.
    device = next(a.device for a in arguments.values() if isinstance(a, Tensor))
    guard = torch.cuda.device(device) if torch.cuda.is_available() else nullcontext()
    with guard:
        torch.library.wrap_triton(kernel)[grid](**arguments)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Inside, in this thread, kernels are not launched but handed to `observer`."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def kernel_op(name: str, body: Callable[..., Any]) -> torch.library.CustomOpDef:
    """Register `body`, which allocates outputs and calls `launch`, as the op `sana_like::name`.

    The op's fake is the same function with the launches left out, so that the two cannot differ in
    shapes. Autograd is registered by the caller.
    """
    # The compiler looks into a `triton_op`; an interpreted kernel has nothing it could see.
    register: Any = torch.library.custom_op if interpreted() else torch.library.triton_op
    op: torch.library.CustomOpDef = register(f"sana_like::{name}", body, mutates_args=())
    op.register_fake(_without_launches(body))
    return op


def interpreted() -> bool:
    """Whether Triton runs its kernels in Python (`TRITON_INTERPRET=1` at its import)."""
    if _missing():
        return False
    import triton

    return bool(triton.knobs.runtime.interpret)


def _without_launches(body: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(body)
    def fake(*args: Any, **kwargs: Any) -> Any:
        with observed(lambda *_: None):
            return body(*args, **kwargs)

    return fake


def _check(backend: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; use one of {', '.join(BACKENDS)}")


@functools.cache
def _probe(device_type: str) -> str | None:
    if device_type not in ("cuda", "cpu"):
        return f"Triton has no kernels for {device_type}"
    if _missing():
        return "triton is not installed (extra `triton`, Linux)"
    if device_type == "cpu":
        return None if interpreted() else "on a CPU only Triton's interpreter could run them"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    capability = torch.cuda.get_device_capability()
    if torch.version.hip is None and capability < OLDEST_NVIDIA:
        return f"compute capability {capability[0]}.{capability[1]} is older than 8.0"
    return None


def _missing() -> bool:
    try:
        return importlib.util.find_spec("triton") is None
    except ValueError:  # a module set to None in sys.modules has no spec
        return True


def _triton_version() -> str:
    import triton

    return str(triton.__version__)
