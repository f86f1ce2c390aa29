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


def acting(layer: Any) -> Any:
    """The layer that acts: the one inside an adapter that adds nothing, else `layer` itself.

    An adapter (of peft) adds nothing where it is merged into the weights, switched off, or at scale
    zero. Taking the layer inside makes scale zero equal to the base in every bit, whatever path the
    base takes.
    """
    base = getattr(layer, "base_layer", None)
    if base is None or layer._forward_hooks or layer._forward_pre_hooks:
        return layer
    scaling: Any = getattr(layer, "scaling", {})
    active: Any = getattr(layer, "active_adapters", ())
    idle = all(scaling.get(name, 0) == 0 for name in active)
    if idle or getattr(layer, "merged", False) or getattr(layer, "disable_adapters", False):
        return acting(base)
    return layer


def is_plain(*layers: Any) -> bool:
    """Whether the weights of all `layers` may be read past their `forward`.

    Not so where an adapter adds to one, or a hook (of offloading, or of casting layer by layer)
    prepares the weights or watches the call. An adapter of no weight adds nothing, so that the
    result is bit for bit the base's; PEFT's layers pass on the weights of what they wrap.
    """
    return all(
        not _adapted(layer)
        and "forward" not in layer.__dict__
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        for layer in layers
    )


def _adapted(layer: Any) -> bool:
    """Whether PEFT wraps the layer and adds something to its result."""
    if not hasattr(layer, "base_layer"):
        return False
    active = () if layer.disable_adapters else layer.active_adapters
    # Other kinds than LoRA have no scales: their contribution is not known here.
    scales = getattr(layer, "scaling", None)
    if scales is None or layer.merged or not is_plain(layer.base_layer):
        return True
    return any(scales.get(name, 1.0) for name in active)
