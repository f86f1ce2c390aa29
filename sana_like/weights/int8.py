"""Symmetric int8 storage with one scale per output channel.

It halves a bfloat16 file for transport; in memory the weights are floating point again. A weight
`W [O, ...]` is stored as `round(W / s)` with `s = max|W| / 127` over each output channel, beside
`s` under the key `<key>.int8_scale`; the file's metadata carries `sana_like.int8 = 1`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sana_like.weights.errors import WeightsError

INT8_METADATA = {"sana_like.int8": "1"}
SCALE_SUFFIX = ".int8_scale"
_LEVELS = 127


def pack_int8(
    state_dict: Mapping[str, Tensor],
    *,
    rest_dtype: torch.dtype = torch.float32,
    min_numel: int = 1024,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Pack the matrices and kernels of a state dict.

    Args:
        state_dict: floating-point and integer tensors by key.
        rest_dtype: type of the floating-point tensors that stay unpacked (biases, norms, tables).
        min_numel: weights with fewer elements stay unpacked.

    Returns:
        The tensors to write, and the metadata that the file must carry.

    Raises:
        WeightsError: a weight holds NaN or infinity.
    """
    packed: dict[str, Tensor] = {}
    for key, tensor in state_dict.items():
        if not tensor.is_floating_point():
            packed[key] = tensor
        elif key.endswith(".weight") and tensor.ndim >= 2 and tensor.numel() >= min_numel:
            packed[key], packed[key + SCALE_SUFFIX] = _quantize(key, tensor)
        else:
            packed[key] = tensor.to(rest_dtype)
    return packed, dict(INT8_METADATA)


def unpack_int8(values: Tensor, scale: Tensor) -> Tensor:
    """Inverse of the packing: `values [O, ...]` int8 times `scale [O]` fp32, as fp32."""
    return values.float() * scale.float().view(-1, *(1,) * (values.ndim - 1))


def _quantize(key: str, weight: Tensor) -> tuple[Tensor, Tensor]:
    rows = weight.detach().float().flatten(1)  # [O, I]
    scale = rows.abs().amax(dim=1) / _LEVELS  # [O]
    if not torch.isfinite(scale).all():
        raise WeightsError(f"{key}: holds NaN or infinity and cannot be stored as int8.")
    steps = torch.where(scale > 0, scale, 1.0)
    values = (rows / steps[:, None]).round().clamp(-_LEVELS, _LEVELS).to(torch.int8)
    return values.view(weight.shape), scale
