"""Which code computes the softmax attention to the text, through diffusers' dispatcher.

`native` is this package's own choice: PyTorch's fused attention, or plain products where they are
quicker. The others are diffusers' names. Backends that fetch code from the hub are not offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

NATIVE = "native"


class Backend(NamedTuple):
    """What a backend can do."""

    masks: bool = True
    """Whether it takes a mask of the text tokens."""
    cuda: bool = True
    """Whether it needs CUDA (or ROCm)."""
    half: bool = False
    """Whether it needs fp16 or bf16."""
    flat_mask: bool = False
    """Whether it wants the mask as `[B, L]`, not as `[B, 1, 1, L]`."""


BACKENDS: Mapping[str, Backend] = {
    NATIVE: Backend(cuda=False),
    "_native_math": Backend(cuda=False),
    "_native_efficient": Backend(),
    "_native_flash": Backend(masks=False, half=True),
    "_native_cudnn": Backend(half=True),
    "flash": Backend(masks=False, half=True),
    "flash_varlen": Backend(half=True, flat_mask=True),
    "_flash_3": Backend(masks=False, half=True),
    "_flash_varlen_3": Backend(half=True, flat_mask=True),
    "sage": Backend(masks=False, half=True),
    "xformers": Backend(flat_mask=True),
}
"""By diffusers' name."""


def unusable_backends(device: torch.device, dtype: torch.dtype | None = None) -> dict[str, str]:
    """Backends that cannot act on `device`, and why.

    Args:
        device: of the model.
        dtype: of the model; `None` asks about the device alone.
    """
    reasons = {}
    for name, backend in BACKENDS.items():
        missing = _missing_package(name)
        if backend.cuda and device.type != "cuda":
            reasons[name] = "needs a CUDA or ROCm device"
        elif missing:
            reasons[name] = missing
        elif backend.half and dtype not in (None, torch.float16, torch.bfloat16):
            reasons[name] = f"needs bfloat16 or float16, the model is {dtype}"
    return reasons


def check_backend(name: str, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Refuse a backend that is unknown or cannot act.

    Raises:
        ValueError: why not, and which are legal here.
    """
    reasons = unusable_backends(device, dtype)
    if name in BACKENDS and name not in reasons:
        return
    why = f"cannot act here: {reasons[name]}" if name in reasons else "is unknown"
    if name not in BACKENDS and name.endswith("_hub"):
        why = "fetches code from the hub, which is not offered"
    legal = ", ".join(each for each in BACKENDS if each not in reasons)
    raise ValueError(f"attention backend {name!r} {why}; legal on {device}: {legal}")


def check_mask(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a backend that reads no mask, for a text of several lengths.

    Raises:
        ValueError: names the backends that do here, and the way around.
    """
    if BACKENDS[name].masks:
        return
    reasons = unusable_backends(device, dtype)
    legal = [each for each, kind in BACKENDS.items() if kind.masks and each not in reasons]
    raise ValueError(
        f"attention backend {name!r} takes no mask, and the prompts of this batch differ in length "
        f"(the negative one counts too); legal here: {', '.join(legal)}; or make one picture at a "
        'time with guidance_passes="sequential"'
    )


def attend(name: str, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention by a backend.

    Args:
        name: of `BACKENDS`.
        query: `[B, H, N, D]`.
        key, value: `[B, H, L, D]`.
        mask: bool `[B, 1, 1, L]`, true where a token may be read, or `None`.

    Returns:
        `[B, H, N, D]`.
    """
    from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn

    if mask is not None and BACKENDS[name].flat_mask:
        mask = mask[:, 0, 0]
    out = dispatch_attention_fn(
        query.transpose(1, 2),  # [B, N, H, D]
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
        backend=AttentionBackendName(name),
    )
    return out.transpose(1, 2)


def _missing_package(name: str) -> str:
    """What diffusers says is missing for a backend; empty where nothing is."""
    from diffusers.models import attention_dispatch

    try:
        attention_dispatch._check_attention_backend_requirements(
            attention_dispatch.AttentionBackendName(name)
        )
    except RuntimeError as error:
        found = str(error).partition("Please ")[2].rstrip(".")
        return f"not installed ({found})" if found else str(error)
    return ""
