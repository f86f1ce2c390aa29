"""When an op may take the path that is written for inference on a CPU.

That path computes the same in pieces which stay in the cache, in place, and with oneDNN's fused
products; none of it can be differentiated. The plain path remains for gradients, for the compiler,
which fuses better than any hand, and for every kind of tensor that is not simply numbers in memory.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Numbers in one piece of work: 2 MiB in fp32, what two cores hold next to themselves.
PIECE = 2**19


def plain_inference(*tensors: Tensor | None) -> bool:
    """Whether all `tensors` are plain CPU tensors and nothing but their values is wanted.

    False where a gradient is recorded, under autocast, while compiling, where a mode watches every
    operation (counters of operations do), for fp64 (which is for references) and for subclasses of
    tensors, such as quantised weights.
    """
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    if is_in_torch_dispatch_mode():
        return False
    recording = torch.is_grad_enabled()
    return all(
        type(x) in (Tensor, Parameter)
        and x.device.type == "cpu"
        and x.dtype in DTYPES
        and not (recording and x.requires_grad)
        for x in tensors
        if x is not None
    )


@functools.cache
def onednn_computes(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies matrices of `dtype` at full speed on this machine."""
    if not torch.backends.mkldnn.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32


def pieces(rows: int, width: int) -> range:
    """First rows of equal pieces of at most about `PIECE` numbers; the step is their length."""
    count = max(1, -(-rows * width // PIECE))
    return range(0, rows, max(1, -(-rows // count)))
