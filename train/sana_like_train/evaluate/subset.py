"""A few of many, the same few every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Return `limit` of `items`, evenly spread over them; all where None or not more there are."""
    if limit is None or limit >= len(items):
        return list(items)
    if limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    return [items[index * len(items) // limit] for index in range(limit)]
