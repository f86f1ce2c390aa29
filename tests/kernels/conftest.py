"""Triton's interpreter for the kernels: rounding as on a chip, and the guard that it is on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips where Triton is missing; kernels then run in Python on CPU tensors."""
    pytest.importorskip("triton")
    import triton
    from triton.runtime import interpreter

    assert triton.knobs.runtime.interpret, "TRITON_INTERPRET must be set before triton is imported"
    original = interpreter._convert_float

    def convert(data: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
        # The interpreter cuts bfloat16 off, where chips round to nearest even.
        if source.is_fp32() and target.is_bf16():
            wide = torch.from_numpy(np.ascontiguousarray(data))
            return wide.to(torch.bfloat16).view(torch.uint16).numpy().reshape(data.shape)
        return original(data, source, target, mode)

    monkeypatch.setattr(interpreter, "_convert_float", convert)
