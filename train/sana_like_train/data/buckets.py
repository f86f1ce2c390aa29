"""Aspect buckets: pictures of any shape in batches of one shape, with the least cropping.

The order of batches is a function of `(seed, epoch)` alone, and the sampler's state is two
numbers, so a resumed run sees exactly the batches that the uninterrupted one would have seen.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]  # (height, width) in pixels


def make_buckets(pixels: int, multiple: int, max_ratio: float = 2.0) -> tuple[Size, ...]:
    """Return the sizes (height, width), multiples of `multiple`, nearest to `pixels` in area.

    One bucket for every height from the flattest shape to the tallest, sides at most `max_ratio`
    apart; sorted by aspect. Contains the mirror image of every shape.

    Raises `ValueError` where no size fits.
    """
    if pixels < multiple * multiple or multiple < 1 or max_ratio < 1.0:
        raise ValueError(
            f"no bucket of about {pixels} pixels has sides that are multiples of {multiple} and at "
            f"most {max_ratio} apart; pixels >= multiple^2, multiple >= 1, max_ratio >= 1"
        )
    side = math.sqrt(pixels)
    found: set[Size] = set()
    shortest = max(1, math.floor(side / math.sqrt(max_ratio) / multiple))
    longest = math.ceil(side * math.sqrt(max_ratio) / multiple)
    for steps in range(shortest, longest + 1):
        height = steps * multiple
        width = round(pixels / height / multiple) * multiple
        if 0 < max(height, width) <= max_ratio * min(height, width):
            found |= {(height, width), (width, height)}
    square = max(1, round(side / multiple)) * multiple
    found.add((square, square))
    return tuple(sorted(found, key=lambda size: (size[1] / size[0], size)))


def nearest_bucket(size: Size, buckets: Sequence[Size]) -> int:
    """Return the index of the bucket whose aspect is nearest to that of `size`, on a log scale."""
    height, width = size
    if height < 1 or width < 1:
        raise ValueError(f"a picture of {height} x {width} pixels has no aspect")
    wanted = math.log(width / height)
    return min(
        range(len(buckets)),
        key=lambda index: abs(math.log(buckets[index][1] / buckets[index][0]) - wanted),
    )


def fit_to_bucket(picture: Tensor, size: Size) -> Tensor:
    """Scale `picture` `[3, Y, X]` to cover `size` and cut the middle out: `[3, *size]`.

    Bicubic with antialiasing; values stay in [-1, 1].
    """
    height, width = size
    scale = max(height / picture.shape[1], width / picture.shape[2])
    scaled = (
        max(height, round(picture.shape[1] * scale)),
        max(width, round(picture.shape[2] * scale)),
    )
    if scaled != tuple(picture.shape[1:]):
        picture = F.interpolate(
            picture[None], size=scaled, mode="bicubic", antialias=True, align_corners=False
        )[0].clamp_(-1.0, 1.0)
    top, left = (scaled[0] - height) // 2, (scaled[1] - width) // 2
    return picture[:, top : top + height, left : left + width]


@dataclass(frozen=True, slots=True)
class Batch:
    """Indices of the pictures of one batch and the size they share."""

    indices: tuple[int, ...]
    size: Size


class BucketBatchSampler:
    """Batches of pictures of one bucket each, epoch after epoch, without end.

    Every picture occurs once an epoch; what remains of a bucket after its full batches makes a
    smaller batch, or is left out for this epoch with `drop_last`. With `world_size` processes the
    batches are dealt round, and an epoch's last few are repeated from its start so that every
    process gets equally many.

    Args:
        sizes: (height, width) of every picture.
        buckets: as `make_buckets` gives them.
        batch_size: pictures a batch.
        seed: of the order.
    """

    def __init__(
        self,
        sizes: Sequence[Size],
        buckets: Sequence[Size],
        batch_size: int,
        *,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not sizes or not buckets or batch_size < 1:
            raise ValueError(
                f"{len(sizes)} pictures, {len(buckets)} buckets, batches of {batch_size}: "
                "each must be at least 1"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} processes")
        self.buckets = tuple(buckets)
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.position = 0
        self._members: dict[int, list[int]] = {}
        for index, size in enumerate(sizes):
            self._members.setdefault(nearest_bucket(size, buckets), []).append(index)
        if drop_last and all(len(some) < batch_size for some in self._members.values()):
            raise ValueError(
                f"no bucket holds {batch_size} pictures, so drop_last leaves nothing; use smaller "
                "batches or keep the incomplete ones"
            )

    def epoch_batches(self, epoch: int) -> list[Batch]:
        """Return this process's batches of `epoch`, in order."""
        batches = []
        for bucket in sorted(self._members):
            indices = list(self._members[bucket])
            self._generator(epoch, f"bucket {bucket}").shuffle(indices)
            for start in range(0, len(indices), self.batch_size):
                chosen = indices[start : start + self.batch_size]
                if len(chosen) == self.batch_size or not self.drop_last:
                    batches.append(Batch(tuple(chosen), self.buckets[bucket]))
        self._generator(epoch, "batches").shuffle(batches)
        share = math.ceil(len(batches) / self.world_size)
        return [
            batches[(step * self.world_size + self.rank) % len(batches)] for step in range(share)
        ]

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches from the present state on, without end; the state is advanced first."""
        while True:
            batches = self.epoch_batches(self.epoch)
            while self.position < len(batches):
                batch = batches[self.position]
                self.position += 1
                yield batch
            self.epoch += 1
            self.position = 0

    def state_dict(self) -> dict[str, int]:
        """Return where the sampler stands: batches already given of which epoch."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`; raises `ValueError` where it is not one of `state_dict`."""
        epoch, position = state.get("epoch"), state.get("position")
        if not isinstance(epoch, int) or not isinstance(position, int) or min(epoch, position) < 0:
            raise ValueError(f"not a sampler state with 'epoch' and 'position' >= 0: {state!r}")
        self.epoch, self.position = epoch, position

    def _generator(self, epoch: int, purpose: str) -> random.Random:
        text = f"{self.seed}:{epoch}:{purpose}".encode()
        return random.Random(hashlib.blake2b(text, digest_size=8).digest())
