"""Which records a run trains on and which it measures on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from sana_like_train.config import ConfigError, DataConfig
from sana_like_train.data.captions import Caption
from sana_like_train.data.packs import PACKS, find_pack
from sana_like_train.data.records import Record, load_records
from sana_like_train.data.split import Split, load_split

Item = TypeVar("Item")


@dataclass(frozen=True)
class Parts:
    """Records by what a run does with them; without a split all are trained on, none held out."""

    train: list[Record]
    composition: list[Record]
    held_out: list[Record]


def select_records(config: DataConfig) -> Parts:
    """The records of a recipe's data section.

    Raises:
        ConfigError: nothing is left to train on.
    """
    assert config.source is not None  # checked with the recipe
    source = find_pack(config.source) if config.source in PACKS else config.source
    records = load_records(source)
    if config.caption is not None:
        given = (Caption(config.caption),)
        records = [r if r.captions else replace(r, captions=given) for r in records]
    if config.styles is not None:
        records = [record for record in records if record.style in config.styles]
    split = None if config.split is None else load_split(config.split)
    parts = split_records(records, split, selected=config.selected)
    if not parts.train:
        raise ConfigError(
            f"data: no record of {config.source} is left to train on; check data.styles, "
            "data.split and data.selected"
        )
    return parts


def split_records(records: list[Record], split: Split | None, *, selected: bool) -> Parts:
    """Records by the part of the split that they are in; without one all are trained on."""
    if split is None:
        return Parts(records, [], [])
    return Parts(
        split.records(records, "train", selected=selected),
        split.records(records, "composition", selected=selected),
        split.records(records, "held_out", selected=selected),
    )


def evenly(records: list[Item], count: int) -> list[Item]:
    """At most `count` of them, evenly spaced."""
    if len(records) <= count:
        return records
    return [records[index * len(records) // count] for index in range(count)]
