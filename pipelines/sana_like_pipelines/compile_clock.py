"""What compiling costs and saves, measured while pictures are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class CompileReport:
    """Seconds of one shape of evaluation."""

    compiling: float
    """What the first evaluation took longer than the next."""
    eager: float
    """An evaluation that is not compiled."""
    compiled: float
    """An evaluation that is."""
    evaluations: int
    """In the call that was measured."""
    pictures: int
    """In the same call."""

    @property
    def saved(self) -> float:
        """Seconds saved per picture; negative where compiling made it slower."""
        return (self.eager - self.compiled) * self.evaluations / self.pictures

    def __str__(self) -> str:
        cost = f"compiling took {self.compiling:.1f} s"
        pace = f"{self.compiled:.3f} s instead of {self.eager:.3f} s per evaluation"
        if self.saved <= 0:
            return f"{cost} and does not pay: {pace}"
        after = self.compiling / self.saved
        return (
            f"{cost} and saves {self.saved:.2f} s per picture ({pace}): paid back after "
            f"{max(round(after), 1)} pictures of this size"
        )


@dataclass
class _Shape:
    seconds: list[float] = field(default_factory=list)
    eager: float = 0.0


class CompileClock:
    """Times the first two evaluations of each shape, and one that is not compiled.

    That one is made beside the second evaluation and its result dropped.

    Args:
        model: whose repeated blocks are compiled.
        clock: seconds, increasing.
    """

    def __init__(self, model: nn.Module, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model, self._clock = model, clock
        self._shapes: dict[Hashable, _Shape] = {}
        self._fresh: Hashable = None
        self._evaluations = 0

    def begin(self) -> None:
        """A call begins."""
        self._fresh, self._evaluations = None, 0

    def __call__(self, run: Callable[..., Any], latents: Tensor, *args: Any, **kwargs: Any) -> Any:
        """`run(latents, *args, **kwargs)`, timed where its shape is new."""
        self._evaluations += 1
        key = (latents.shape, latents.dtype, latents.device)
        shape = self._shapes.setdefault(key, _Shape())
        if len(shape.seconds) >= 2:
            return run(latents, *args, **kwargs)
        seconds, result = self._timed(run, latents, *args, **kwargs)
        shape.seconds.append(seconds)
        if len(shape.seconds) == 2:
            with uncompiled(self._model):
                shape.eager, _ = self._timed(self._model, latents, *args, **kwargs)
            self._fresh = key
        return result

    def report(self, pictures: int) -> CompileReport | None:
        """Of a shape that the present call met for the first time; `None` where there is none."""
        if self._fresh is None:
            return None
        shape = self._shapes[self._fresh]
        first, second = shape.seconds
        return CompileReport(
            max(first - second, 0.0), shape.eager, second, self._evaluations, pictures
        )

    def _timed(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[float, Any]:
        _wait(args[0])
        began = self._clock()
        result = run(*args, **kwargs)
        _wait(args[0])
        return self._clock() - began, result


def is_compiled(model: nn.Module) -> bool:
    """Whether parts of a model are compiled in place."""
    return any(module._compiled_call_impl is not None for module in model.modules())


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """Run a model as it was before its parts were compiled, within the block."""
    compiled = {
        module: module._compiled_call_impl
        for module in model.modules()
        if module._compiled_call_impl is not None
    }
    try:
        for module in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled.items():
            module._compiled_call_impl = call


def _wait(tensor: Tensor) -> None:
    """Until the device has done what it was given."""
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
    elif tensor.device.type == "mps":
        torch.mps.synchronize()
