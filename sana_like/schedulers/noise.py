"""Reproducible normal noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def draw_noise(
    shape: Sequence[int],
    generator: Generator | Sequence[Generator] | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Unit normal noise that does not depend on the device it ends on.

    It is drawn in fp32 on the generator's own device (the CPU where there is none) and then moved.
    A sequence of generators draws every sample by its own, so a sample's noise is the same alone
    and in any batch; one generator draws the whole batch at once, as diffusers does.

    Args:
        shape: `[B, ...]`.
        generator: none (torch's global one), one, or one per sample.
        device: where the result lives; default CPU.
        dtype: dtype of the result.

    Raises:
        ValueError: the number of generators is not `B`.
    """
    if generator is None or isinstance(generator, Generator):
        noise = _draw(shape, generator)
    else:
        generators = list(generator)
        if len(generators) != shape[0]:
            raise ValueError(
                f"{len(generators)} generators were given for {shape[0]} samples; give one "
                "generator, or one per sample"
            )
        noise = torch.cat([_draw((1, *shape[1:]), each) for each in generators])
    return noise.to(device=device or "cpu", dtype=dtype)


def _draw(shape: Sequence[int], generator: Generator | None) -> Tensor:
    device = "cpu" if generator is None else generator.device
    return torch.randn(tuple(shape), generator=generator, device=device, dtype=torch.float32)
