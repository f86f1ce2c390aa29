"""Convolutions held as linear layers over channels-last tokens.

Being an `nn.Linear`, such a layer is reached by GEMM kernels, quantisation and LoRA. A state dict
in the published layout loads as it is; `sana_like.weights.published_state_dict` writes that layout.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from sana_like.layers.linear import Linear


class KernelLinear(Linear):
    """A convolution over windows that the caller lays out as rows: `[O, I*k]` in memory.

    In published files the weight is `[O, I, *kernel]`; columns are in that order, so either form
    is a view of the other.

    Args:
        in_channels: I.
        out_channels: O.
        kernel: sides of the window, e.g. `(1, 2, 2)`; their product is k.
        bias: whether there is one.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: tuple[int, ...], bias: bool = True
    ) -> None:
        super().__init__(in_channels * math.prod(kernel), out_channels, bias)
        self.kernel = kernel

    def publish(self, weight: Tensor) -> Tensor:
        """A matrix in memory `[O, I*k]` as published `[O, I, *kernel]`; shares memory."""
        return weight.unflatten(1, (-1, *self.kernel))

    def hold(self, weight: Tensor) -> Tensor:
        """Inverse of `publish`; a weight of any other shape is given back as it is."""
        published = weight.ndim == 2 + len(self.kernel) and weight.shape[2:] == self.kernel
        return self._matrix(weight) if published else weight

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.flatten(1)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if weight is not None:
            state_dict[prefix + "weight"] = self.hold(weight)
        super()._load_from_state_dict(state_dict, prefix, *args)


class PointwiseLinear(KernelLinear):
    """A former 1x1 convolution: `[O, I]` in memory, `[O, I, 1, 1]` in published files."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, (1, 1), bias)
