"""Floating types by name."""

from __future__ import annotations

import torch

from sana_like.weights.errors import WeightsError


def floating_dtype(
    dtype: torch.dtype | str | None, torch_dtype: torch.dtype | str | None = None
) -> torch.dtype | None:
    """The type that either argument names, None if neither is given.

    Raises:
        WeightsError: no floating type, or two different ones.
    """
    if dtype is not None and torch_dtype is not None and dtype != torch_dtype:
        raise WeightsError(f"dtype={dtype} and torch_dtype={torch_dtype} differ; give one of them.")
    given = torch_dtype if dtype is None else dtype
    value = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
    if given is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise WeightsError(
            f"dtype={given!r} is no floating type; legal: float32, bfloat16, float16, float64."
        )
    return value
