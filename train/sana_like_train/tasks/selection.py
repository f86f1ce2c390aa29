"""Which records a run trains on and which it measures on."""

from __future__ import annotations

from sana_like_train.config import ConfigError, DataConfig
from sana_like_train.data.records import Record, load_records
from sana_like_train.data.split import load_split


def select_records(config: DataConfig) -> tuple[list[Record], list[Record]]:
    """Training records and held-out records of a recipe's data section.

    Without a split both are all records.

    Raises:
        ConfigError: nothing is left to train on.
    """
    records = load_records(config.source)
    if config.styles is not None:
        records = [record for record in records if record.style in config.styles]
    train, held_out = records, records
    if config.split is not None:
        split = load_split(config.split)
        train = split.records(records, "train", selected=config.selected)
        if config.composition:
            train += split.records(records, "composition", selected=config.selected)
        held_out = split.records(records, "held_out", selected=config.selected)
    if not train or not held_out:
        raise ConfigError(
            f"data: {len(train)} records to train on and {len(held_out)} held out are left of "
            f"{config.source}; check data.styles, data.split and data.selected"
        )
    return train, held_out


def evenly(records: list[Record], count: int) -> list[Record]:
    """At most `count` records, evenly spaced."""
    if len(records) <= count:
        return records
    return [records[index * len(records) // count] for index in range(count)]
