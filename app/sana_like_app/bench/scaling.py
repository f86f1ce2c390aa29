"""How the time of a step grows with the number of tokens."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from sana_like_app.bench.compare import seconds

SIDES = (32, 64, 128, 256)


@torch.no_grad()
def scaling(
    preset: str,
    dtype: torch.dtype,
    device: torch.device,
    around: Callable[[], AbstractContextManager[Any]],
    *,
    sides: Sequence[int] = SIDES,
    layers: int = 1,
    repeats: int = 3,
) -> dict[str, Any]:
    """Time steps of latents of rising size, batch 1, and fit a line to the logarithms.

    Args:
        preset: of a published transformer.
        dtype, device: of the model.
        around: entered around the runs that count.
        sides: of the latents; a token is a latent pixel.
        layers: blocks of the model; the cost is the same for each.
        repeats: runs per size, of which the median counts.

    Returns:
        Tokens, seconds and `slope`, which is 1 for linear growth and 2 for quadratic.
    """
    from sana_like import SanaTransformer2DModel

    torch.manual_seed(0)
    with device:
        model = SanaTransformer2DModel.from_preset(preset, num_layers=layers).to(dtype).eval()
    width = model.caption_channels
    context = model.prepare_text(torch.randn(1, 40, width, device=device, dtype=dtype))
    latents = [torch.randn(1, 32, side, side, device=device, dtype=dtype) for side in sides]
    for latent in latents:
        model(latent, context, 500.0)
    with around():
        times = [
            statistics.median(
                seconds(partial(model, latent, context, 500.0), device) for _ in range(repeats)
            )
            for latent in latents
        ]
    tokens = [side * side for side in sides]
    return {"tokens": tokens, "seconds": times, "slope": slope(tokens, times)}


def slope(across: Sequence[float], up: Sequence[float]) -> float:
    """Of the straight line that is closest to the logarithms of both."""
    xs, ys = [math.log(x) for x in across], [math.log(y) for y in up]
    return statistics.linear_regression(xs, ys).slope
