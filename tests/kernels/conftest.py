"""Triton's interpreter for the kernels: rounding as on a chip, and no slower than it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sana_like_kernels import tuning

# To the interpreter a block of any size is one operation, so its time is the number of blocks.
LARGE = {
    "attention_sums": {"BLOCK_N": 512, "BLOCK_V": 128},
    "attention_tokens": {"BLOCK_N": 512},
    "glu_gate": {"BLOCK_X": 64, "BLOCK_C": 256, "ROWS": 16},
    "glu_backward": {"BLOCK_X": 64, "BLOCK_C": 512, "ROWS": 16},
    "row": {"ROWS": 128},
}


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
    _look_through_each_module_once(monkeypatch, interpreter.InterpretedFunction)


def _look_through_each_module_once(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    """At every call of a device function the interpreter replaces Triton's language anew.

    Once in a launch is enough for each module that has such functions; it is half of the time.
    """
    prepared: set[int] = set()

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepared.clear()
        return launch(self, *args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self.fn.__globals__) in prepared:
            return self.rewrite()(*args, **kwargs)
        prepared.add(id(self.fn.__globals__))
        return device(self, *args, **kwargs)

    launch: Callable[..., Any] = function.run
    device: Callable[..., Any] = function.__call__
    monkeypatch.setattr(function, "run", run)
    monkeypatch.setattr(function, "__call__", call)


@pytest.fixture
def large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks larger than any chip holds, for properties that do not depend on their size."""
    options = tuning.options
    monkeypatch.setattr(
        tuning, "options", lambda kernel, *rest: options(kernel, *rest) | LARGE[kernel]
    )
