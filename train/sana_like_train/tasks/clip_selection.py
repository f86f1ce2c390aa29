"""Which clips and pictures a run on clips trains on and which it measures on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sana_like_train.config import ConfigError, DataConfig
from sana_like_train.data.clip_items import (
    ClipItem,
    drawn_item,
    real_item,
    some_captions,
)
from sana_like_train.data.clips import load_clips
from sana_like_train.data.packs import PACKS, find_pack
from sana_like_train.data.records import Record
from sana_like_train.data.split import load_split
from sana_like_train.tasks.base import Position, SampleOrder
from sana_like_train.tasks.selection import Parts, evenly, select_records, split_records
from sana_like_train.video_sections import ClipData

# Clips to measure on are drawn with an epoch that no training reaches.
_MEASURED_EPOCH = 1 << 40


@dataclass(frozen=True)
class ClipRecords:
    """Pictures to draw clips of, and clips, each by what a run does with them."""

    pictures: Parts
    clips: Parts


def select_clips(config: DataConfig, clips: ClipData) -> ClipRecords:
    """The records of a recipe's data section, of a task on clips.

    Raises:
        ConfigError: nothing is left to train on.
    """
    none = Parts([], [], [])
    pictures, real = none, none
    if config.source is not None:
        pictures = select_records(config)
    if config.clips is not None:
        source = find_pack(config.clips) if config.clips in PACKS else config.clips
        split = None if config.split is None else load_split(config.split)
        real = split_records(load_clips(source), split, selected=config.selected)
    if not real.train and not (pictures.train and clips.drawn):
        raise ConfigError(
            "data: no clip is left to train on; give data.clips, or data.source with "
            "task.clips.drawn above 0, and check data.split and data.selected"
        )
    return ClipRecords(pictures, real)


def drawn_items(records: Sequence[Record], clips: ClipData, seed: int) -> list[ClipItem]:
    """`clips.drawn` clips of exact motion for each picture."""
    return [
        drawn_item(record, seed=seed, epoch=epoch, motions=clips.motions)
        for epoch in range(clips.drawn)
        for record in records
    ]


def measured_items(records: ClipRecords, clips: ClipData, count: int) -> dict[str, list[ClipItem]]:
    """About `count` clips of each part: of training records, and of held-out ones if any."""
    parts = {
        "train": (records.pictures.train, records.clips.train),
        "held_out": (records.pictures.held_out, records.clips.held_out),
    }
    measured = {}
    for name, (pictures, real) in parts.items():
        drawn = pictures if clips.drawn else []
        real_count = max(1, round(count * (1 - clips.share))) if drawn else count
        items = [real_item(record) for record in evenly(real, real_count)]
        for record in evenly(drawn, count - len(items)):
            epoch, motions = _MEASURED_EPOCH, clips.motions
            items.append(drawn_item(record, seed=0, epoch=epoch, motions=motions))
        if items:
            measured[name] = items
    return measured


def with_captions(items: Sequence[ClipItem], count: int) -> list[ClipItem]:
    """The items with at most `count` captions each.

    Raises:
        ConfigError: an item has none.
    """
    silent = [item.key for item in items if not item.captions]
    if silent:
        raise ConfigError(
            f"{len(silent)} clips have no caption, first {silent[0]!r}; put a .txt beside each"
        )
    return [replace(one, captions=some_captions(one.captions, count, one.key)) for one in items]


class MixedOrder:
    """Endless shuffled order of two kinds of samples, mixed by a share.

    Args:
        first, second: how many there are of each kind; either may be none.
        share: of the first kind where there are both.
        seed: of the orders.
    """

    def __init__(self, first: int, second: int, share: float, seed: int) -> None:
        self._orders = [SampleOrder(n, seed + kind) if n else None
                        for kind, n in enumerate((first, second))]  # fmt: skip
        self._share = 1.0 if not second else share if first else 0.0

    def indices(
        self, position: Position, batch_size: int, rng: np.random.Generator
    ) -> list[tuple[int, int]]:
        """(kind, index) of each sample of one process's micro batch; kind 0 is the first."""
        kinds = (rng.random(batch_size) >= self._share).astype(int)
        drawn = [order and order.indices(position, batch_size) for order in self._orders]
        chosen = []
        for place, kind in enumerate(kinds.tolist()):
            indices = drawn[kind]
            assert indices is not None
            chosen.append((kind, indices[place]))
        return chosen
