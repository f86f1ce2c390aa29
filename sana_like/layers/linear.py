"""Linear layers, and whether a layer is nothing but its weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sana_like_kernels import linear


class Linear(nn.Linear):
    """`nn.Linear` whose product takes the quickest routine for the machine."""

    def forward(self, x: Tensor) -> Tensor:
        """`[..., I]` to `[..., O]`."""
        return linear(x, self.weight, self.bias)


def is_plain(*layers: Any) -> bool:
    """Whether the weights of all `layers` may be read past their `forward`.

    Not so where an adapter wraps one, or a hook (of offloading, or of casting layer by layer)
    prepares the weights or watches the call.
    """
    return all(
        not hasattr(layer, "base_layer")
        and "forward" not in layer.__dict__
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        for layer in layers
    )
