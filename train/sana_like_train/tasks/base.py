"""The interface between the loop and what it trains."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Position:
    """Where a micro batch lies in the run; batches are functions of it and of the seed alone.

    Attributes:
        step: index of the optimiser step.
        micro: index of the micro step since the start of the run.
        samples: samples drawn before it over all processes.
        rank, world: this process among how many.
    """

    step: int
    micro: int
    samples: int
    rank: int = 0
    world: int = 1


@dataclass
class Batch:
    """Samples of one micro step.

    Attributes:
        keys: names of the samples, for messages.
        tensors: what the objective reads, first dimension the batch.
    """

    keys: list[str]
    tensors: dict[str, Tensor]


def derived_seed(seed: int, purpose: str, *counters: int) -> int:
    """A 63-bit seed that depends on the run's seed, a purpose and counters."""
    text = ":".join([str(seed), purpose, *map(str, counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class SampleOrder:
    """Endless shuffled order of `count` samples: epoch e is a permutation drawn from (seed, e)."""

    def __init__(self, count: int, seed: int) -> None:
        if count < 1:
            raise ValueError("there is nothing to train on: no record passed the data filters")
        self.count = count
        self.seed = seed
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.long)

    def indices(self, position: Position, batch_size: int) -> list[int]:
        """Samples of one process's micro batch."""
        start = position.samples + position.rank * batch_size
        return [self._at(index) for index in range(start, start + batch_size)]

    def _at(self, index: int) -> int:
        epoch, offset = divmod(index, self.count)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(derived_seed(self.seed, "order", epoch))
            self._permutation = torch.randperm(self.count, generator=generator)
            self._epoch = epoch
        return int(self._permutation[offset])


class TrainingTask(ABC):
    """A model with its data, losses and measures.

    Attributes:
        objective: module whose `forward(batch.tensors)` gives `{"loss": scalar,
            "per_sample": [B], "logs": {name: scalar}, "carry": {name: value}}`; all trained
            weights are its parameters that require a gradient.
        objective_every: it is trained in every so many-th step, from the first on, and called
            without gradients in the others, in which the critic alone is trained.
        exported: module inside it whose weights are averaged, sampled from and exported.
        critic: second module, trained on what the objective's `carry` holds by its own optimiser,
            or none.
        critic_lr: its peak learning rate.
        metric: name among the held-out measures by which the best checkpoint is chosen.
        higher_is_better: direction of the metric.
    """

    objective: nn.Module
    exported: Any  # one of our models; attributes of modules are untyped
    critic: nn.Module | None = None
    critic_lr: float = 0.0
    objective_every: int = 1
    metric: str
    higher_is_better: bool

    @abstractmethod
    def make_batch(self, position: Position) -> Batch:
        """The micro batch of a position, on the CPU."""

    @abstractmethod
    def evaluate(self, device: torch.device) -> dict[str, float]:
        """Held-out measures of the exported module as it stands."""

    @abstractmethod
    def sample_sheet(self, device: torch.device) -> Tensor:
        """A contact sheet `[3, Y, X]` in [-1, 1] from the exported module as it stands."""

    @abstractmethod
    def export(self, folder: Path, *, int8: bool = False) -> None:
        """Writes the exported module as a folder that `from_pretrained` loads.

        Args:
            folder: to write.
            int8: store weights as int8 with a scale per output channel.
        """
