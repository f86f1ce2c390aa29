"""Calls of every op at the sizes of published models, with the bytes that they cannot avoid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from sana_like_kernels.dispatch import Backend
from sana_like_kernels.glu_mbconv import glu_mbconv
from sana_like_kernels.linear_attention import linear_attention
from sana_like_kernels.modulated_norm import gated_residual_norm, modulated_norm
from sana_like_kernels.qk_norm_rope import qk_norm_rope
from sana_like_kernels.rms_norm_2d import rms_norm_2d

Passes = Literal["forward", "both"]
Outputs = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One call.

    Args:
        op: name of the op.
        label: its size, for people.
        shapes: of the tensors that the call takes, all differentiated.
        call: the op, given tensors and `backend`.
        forward, backward: numbers that must be read or written at least once. The backward pass
            reads the inputs and the gradient of the result and writes the gradients.
        tokens: of the tables of rotations that follow the tensors, and the width of one; or `None`.
        target: share of the bound that is aimed at forward in half precision, or `None`.
    """

    op: str
    label: str
    shapes: tuple[tuple[int, ...], ...]
    call: Callable[..., Outputs]
    forward: int
    backward: int
    tokens: tuple[int, int] | None = None
    target: float | None = None

    def draw(self, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Random tensors for the call, the same for every dtype up to rounding."""
        generator = torch.Generator().manual_seed(0)
        tensors = [
            torch.randn(shape, generator=generator).to(device, dtype) for shape in self.shapes
        ]
        if self.tokens is not None:
            angles = 6 * torch.rand(self.tokens, generator=generator)
            tensors += [angles.cos().to(device), angles.sin().to(device)]
        return tensors

    def runner(
        self, passes: Passes, tensors: Sequence[Tensor], backend: Backend
    ) -> Callable[[], tuple[Tensor, ...]]:
        """A call that gives the results; in `both` passes also the gradients of all `shapes`.

        Those are of the sum of the results' products with 1, -1, 1, ...
        """
        if passes == "forward":
            return lambda: self._results(tensors, backend)
        probes = [_alternating(x) for x in self._results(tensors, backend)]
        leaves = [x.detach().requires_grad_() for x in tensors[: len(self.shapes)]]
        given = [*leaves, *tensors[len(self.shapes) :]]

        def both() -> tuple[Tensor, ...]:
            outs = self._results(given, backend)
            return *outs, *torch.autograd.grad(outs, leaves, probes)

        return both

    def _results(self, tensors: Sequence[Tensor], backend: Backend) -> tuple[Tensor, ...]:
        outs = self.call(*tensors, backend=backend)
        return outs if isinstance(outs, tuple) else (outs,)


def _alternating(x: Tensor) -> Tensor:
    return 1 - 2 * (torch.arange(x.numel(), device=x.device) % 2).view(x.shape).to(x.dtype)


def attention_case(b: int, n: int, h: int, d: int, *, extended: bool = False) -> Case:
    """Linear attention of `[B, N, H, D]`; extended, with norms and rotations."""

    def call(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor, backend: Backend) -> Tensor:
        extras: dict[str, Any] = {"norms": rest[:2], "rope": rest[2:]} if extended else {}
        return linear_attention(q, k, v, backend=backend, **extras)

    size = b * n * h * d
    norms = ((h * d,),) * 2 if extended else ()
    label = f"B{b} N{n} H{h} D{d}" + (" norm rope" if extended else "")
    tokens = (n, d // 2) if extended else None
    shapes = ((b, n, h, d),) * 3 + norms
    target = 0.7 if n >= 4096 and not extended else None
    return Case("linear_attention", label, shapes, call, 4 * size, 7 * size, tokens, target)


def feed_forward_case(b: int, y: int, x: int, channels: int) -> Case:
    """The feed-forward between its two 1x1 convolutions, of `[B, Y, X, channels]`."""

    def call(*tensors: Tensor, backend: Backend) -> Tensor:
        hidden, weight, bias, expand = tensors
        return glu_mbconv(hidden, weight, bias, expand_bias=expand, backend=backend)

    shapes = ((b, y, x, channels), (channels, 1, 3, 3), (channels,), (channels,))
    size = prod(shapes[0])
    label = f"B{b} {y}x{x} C{channels}"
    moved = (size + size // 2, 2 * size + size // 2)
    return Case("glu_mbconv", label, shapes, call, *moved, target=0.6)


def norm_cases(b: int, n: int, frames: int, c: int) -> Iterator[Case]:
    """Modulated norm, without and with the gated residual before it."""

    def gated(*tensors: Tensor, backend: Backend) -> tuple[Tensor, ...]:
        return gated_residual_norm(*tensors, backend=backend)

    size, vector = b * n * c, (b, frames, c)
    label = f"B{b} N{n} C{c}" + (f" F{frames}" if frames > 1 else "")
    tokens = (b, n, c)
    shapes: tuple[tuple[int, ...], ...] = (tokens, vector, vector)
    yield Case("modulated_norm", label, shapes, modulated_norm, 2 * size, 3 * size)
    shapes = (tokens, tokens, vector, vector, vector)
    yield Case("gated_residual_norm", label, shapes, gated, 4 * size, 6 * size)


def rotated_case(b: int, n: int, h: int, d: int) -> Case:
    """Norm and rotation of queries and keys `[B, N, H, D]`."""

    def call(*tensors: Tensor, backend: Backend) -> tuple[Tensor, ...]:
        return qk_norm_rope(*tensors[:4], rope=(tensors[4], tensors[5]), backend=backend)

    size = b * n * h * d
    shapes = ((b, n, h, d),) * 2 + ((h * d,),) * 2
    label = f"B{b} N{n} H{h} D{d}"
    return Case("qk_norm_rope", label, shapes, call, 4 * size, 6 * size, (n, d // 2))


def plane_case(y: int, x: int, c: int, activation: str | None) -> Case:
    """Norm of `[1, Y, X, C]` with an activation, or with a residual."""

    def call(*tensors: Tensor, backend: Backend) -> Tensor:
        values, weight, bias, *rest = tensors
        residual = rest[0] if rest else None
        return rms_norm_2d(
            values, weight, bias, residual=residual, activation=activation, backend=backend
        )

    size = y * x * c
    shapes: tuple[tuple[int, ...], ...] = ((1, y, x, c), (c,), (c,))
    if activation is None:
        shapes += ((1, y, x, c),)
    added = int(activation is None)
    label = f"{y}x{x} C{c} " + (activation or "residual")
    return Case("rms_norm_2d", label, shapes, call, (2 + added) * size, (3 + added) * size)


def cases(*, tiny: bool = False) -> Iterator[Case]:
    """Every op: SANA 0.6B and 1.6B at 1024 to 4096 px, SANA-Video at 480p, DC-AE at 1024 px.

    Args:
        tiny: sizes that run in no time, to try the benchmark itself.
    """
    if tiny:
        yield attention_case(1, 20, 2, 16)
        yield attention_case(1, 20, 2, 16, extended=True)
        yield feed_forward_case(1, 3, 4, 8)
        yield from norm_cases(1, 6, 2, 16)
        yield rotated_case(1, 6, 2, 8)
        yield plane_case(2, 3, 16, None)
        return
    for n in (1024, 4096, 16384):
        yield attention_case(2, n, 70, 32)
    yield attention_case(2, 1024, 70, 32, extended=True)
    for n in (9680, 32760):
        yield attention_case(1, n, 20, 112)
    yield attention_case(1, 32760, 20, 112, extended=True)
    yield feed_forward_case(2, 32, 32, 5760)
    yield feed_forward_case(2, 32, 32, 11200)
    yield feed_forward_case(2, 64, 64, 11200)
    yield feed_forward_case(5, 30, 52, 13440)
    yield from norm_cases(2, 1024, 1, 2240)
    yield from norm_cases(2, 16384, 1, 2240)
    yield from norm_cases(1, 32760, 21, 2240)
    yield rotated_case(2, 4096, 70, 32)
    yield rotated_case(1, 32760, 20, 112)
    for side, channels in ((1024, 128), (256, 512), (64, 1024)):
        yield plane_case(side, side, channels, None)
        yield plane_case(side, side, channels, "relu")
