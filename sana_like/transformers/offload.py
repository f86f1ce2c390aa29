"""Offloaded weights and methods other than `forward`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def weights_present(module: nn.Module) -> Iterator[None]:
    """Bring offloaded weights in for a method that is not `forward`, and let them go after it.

    accelerate and diffusers hang their offloading on `forward` alone; without this, another method
    would compute with whatever is left in the weights' place.

    Args:
        module: whose hooks are run; does nothing where it has none. Not to be used inside that
            module's own `forward`, whose weights would be gone afterwards.
    """
    hooks = []
    accelerate_hook = getattr(module, "_hf_hook", None)
    if accelerate_hook is not None:
        hooks.append(accelerate_hook)
    registry = getattr(module, "_diffusers_hook", None)
    group_hook = registry.get_hook("group_offloading") if registry is not None else None
    if group_hook is not None:
        hooks.append(group_hook)
    for hook in hooks:
        hook.pre_forward(module)
    try:
        yield
    finally:
        for hook in reversed(hooks):
            hook.post_forward(module, None)
