"""Exponential moving average of weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ExponentialMovingAverage:
    """Keeps `average <- d * average + (1 - d) * weight` in fp32 for the trained parameters.

    The decay grows as `d = min(decay, (1 + n) / (warmup + n))` with the update count n, so that
    the first weights do not weigh on a short run.

    Args:
        module: its parameters that require a gradient are averaged; buffers are copied.
        decay: limit of the decay, in [0, 1).
        warmup: at least 1; larger values raise the decay later.
    """

    def __init__(self, module: nn.Module, decay: float, warmup: float = 10.0) -> None:
        self.decay = decay
        self.warmup = warmup
        self.updates = 0
        self.average = {
            name: parameter.detach().to(torch.float32, copy=True)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def current_decay(self) -> float:
        """The decay that the next update uses."""
        return min(self.decay, (1 + self.updates) / (self.warmup + self.updates))

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Moves the averages towards the module's weights."""
        weights = dict(module.named_parameters())
        ours = list(self.average.values())
        theirs = [weights[name].detach().float() for name in self.average]
        torch._foreach_lerp_(ours, theirs, 1 - self.current_decay())
        self.updates += 1

    @contextmanager
    def applied_to(self, module: nn.Module) -> Iterator[None]:
        """The module computes with the averages inside the context, without a copy of them."""
        parameters = {n: p for n, p in module.named_parameters() if n in self.average}
        held = {name: parameter.data for name, parameter in parameters.items()}
        try:
            for name, parameter in parameters.items():
                parameter.data = self.average[name].to(parameter.dtype)
            yield
        finally:
            for name, parameter in parameters.items():
                parameter.data = held[name]

    def state_dict(self) -> dict[str, Tensor]:
        """Averages by parameter name."""
        return self.average

    def load_state_dict(self, averages: dict[str, Tensor], updates: int) -> None:
        """Puts saved averages back.

        Raises:
            ValueError: other names or shapes than this module's.
        """
        differing = sorted(set(averages) ^ set(self.average))
        if differing:
            raise ValueError(f"saved average and model differ in {len(differing)}: {differing[:5]}")
        for name, value in averages.items():
            if value.shape != self.average[name].shape:
                raise ValueError(
                    f"saved average of {name} has shape {tuple(value.shape)}, "
                    f"the model {tuple(self.average[name].shape)}"
                )
            self.average[name].copy_(value)
        self.updates = updates
