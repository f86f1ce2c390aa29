"""Noise that depends on its seed alone: drawn on the CPU, one generator per picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from sana_like.schedulers.noise import draw_noise
from sana_like_pipelines.whole import is_whole

Seeds = int | Generator | Sequence[int | Generator] | None
"""What a `generator` argument may be."""

MAX_SEED = 2**63 - 1


class NoiseSource:
    """The generators of a batch.

    A seed gives the same noise alone, in any batch and on any device.

    Args:
        generator: a list with one seed or CPU generator per picture; or one seed `s`, from which
            the pictures get `s`, `s + 1`, ...; or `None` for seeds from torch's global generator.
            A single generator is one stream, as in diffusers: all pictures of a batch draw
            from it in turn, so only the first of them is the same when made alone.
        count: number of pictures B.

    Raises:
        ValueError: the list has another length than `count`, a generator is not on the CPU, or a
            seed is no int from 0 to 2**63 - 1.
    """

    def __init__(self, generator: Seeds, count: int) -> None:
        self.count = count
        self.shared: Generator | None = None
        self.generators: list[Generator] = []
        if generator is None:
            drawn = torch.randint(0, 2**31, (count,), device="cpu").tolist()
            self.generators = [_seeded(seed) for seed in drawn]
        elif isinstance(generator, Generator):
            self.shared = _on_cpu(generator)
        elif isinstance(generator, Sequence) and not isinstance(generator, (str, bytes)):
            if len(generator) != count:
                raise ValueError(
                    f"{len(generator)} generators were given for {count} pictures (prompts times "
                    "num_images_per_prompt): give one seed or generator per picture"
                )
            self.generators = [_own(item) for item in generator]
        else:
            first = _check_seed(generator)
            if first + count - 1 > MAX_SEED:
                raise ValueError(
                    f"generator={first} has no {count - 1} successors up to 2**63 - 1: give a "
                    "smaller seed, or a list"
                )
            self.generators = [_seeded(first + i) for i in range(count)]
        self.seeds: list[int | None] = self._seeds()

    def _seeds(self) -> list[int | None]:
        """The seed that makes each picture again, `None` where no seed can."""
        if self.shared is not None:
            return [_seed_of(self.shared)] if self.count == 1 else [None] * self.count
        ids = [id(generator) for generator in self.generators]
        return [
            _seed_of(generator) if ids.count(id(generator)) == 1 else None
            for generator in self.generators
        ]

    @property
    def for_scheduler(self) -> Generator | list[Generator]:
        """In the form that the `step` of a scheduler takes."""
        return self.shared if self.shared is not None else self.generators

    def draw(self, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
        """Standard normal noise `[B, *shape]`, fp32, on `device`."""
        return draw_noise((self.count, *shape), self.for_scheduler, device=device)


def _check_seed(seed: object) -> int:
    if not is_whole(seed) or not 0 <= seed <= MAX_SEED:
        raise ValueError(
            f"generator={seed!r}: give a seed (an int from 0 to 2**63 - 1), a torch.Generator, or "
            "a list of them with one per picture"
        )
    return int(seed)


def _seeded(seed: int) -> Generator:
    return Generator("cpu").manual_seed(seed)


def _own(item: int | Generator) -> Generator:
    return _on_cpu(item) if isinstance(item, Generator) else _seeded(_check_seed(item))


def _on_cpu(generator: Generator) -> Generator:
    if generator.device.type != "cpu":
        raise ValueError(
            f"a generator on {generator.device} makes other noise than on other devices: give a "
            "seed, or torch.Generator('cpu').manual_seed(seed); noise is drawn on the CPU"
        )
    return generator


def _seed_of(generator: Generator) -> int | None:
    """The seed of a generator that has not been used yet."""
    seed = generator.initial_seed()
    if not 0 <= seed <= MAX_SEED:
        return None
    return seed if torch.equal(generator.get_state(), _seeded(seed).get_state()) else None
