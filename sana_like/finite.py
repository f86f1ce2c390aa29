"""The check that keeps NaN and infinity from becoming a picture."""

from __future__ import annotations

import torch
from torch import Tensor


class NonFiniteError(FloatingPointError, ValueError):
    """A stage of the work produced NaN or infinity, so there is no result.

    Args:
        stage: which stage, such as `"text encoding"` or `"step 3 of 20"`.
        detail: what was found and what to do.

    Attributes:
        stage: as given.
    """

    def __init__(self, stage: str, detail: str) -> None:
        self.stage = stage
        super().__init__(f"{stage}: {detail}")


def require_finite(values: Tensor, stage: str, dtype: torch.dtype | None = None) -> None:
    """Raise `NonFiniteError` unless every value is finite.

    Args:
        values: any shape, any floating dtype.
        stage: what made them, for the message.
        dtype: what they were computed in, where that is not the dtype of `values`.
    """
    finite = torch.isfinite(values)
    if finite.all():
        return
    computed_in = dtype or values.dtype
    remedy = {
        torch.float16: "Load with dtype=torch.bfloat16 or torch.float32.",
        torch.bfloat16: "Load with dtype=torch.float32.",
    }.get(computed_in, "The weights are probably damaged: `sana-like inspect` tells more.")
    bad, total = values.numel() - int(finite.sum()), values.numel()
    raise NonFiniteError(
        stage,
        f"{bad} of {total} values are NaN or infinite, computed in {computed_in}; no picture was "
        f"made. {remedy}",
    )
